"""QuotaPolicies and QuotaCaps: those that apply to a Pod, their strictest bounds, and usage."""
