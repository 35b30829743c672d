"""One node: state directory, tenants, admission, supervision."""
