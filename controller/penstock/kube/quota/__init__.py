"""QuotaPolicies and QuotaCaps: which hold for a Pod, their strictest bounds, and what counts."""
