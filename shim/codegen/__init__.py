"""Build-time generators: from the vendor's headers to forwarders, stubs and name tables."""
