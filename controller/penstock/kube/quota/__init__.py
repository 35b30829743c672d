"""QuotaPolicies and QuotaCaps: which ones hold for a Pod, their strictest bounds, and usage."""
