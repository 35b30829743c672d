"""The gRPC service of a pool's manager (`proto/penstock_api/v1/pool.proto`)."""
