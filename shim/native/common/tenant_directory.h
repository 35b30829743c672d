/* The directory that holds the pages of this process's tenant. */
#pragma once

/* The path at which a container has its tenant directory mounted. It is not below /run/penstock
 * because that directory is unreadable on a machine whose root user runs tenants, and an unreadable
 * directory must not be mistaken for a mount. */
#define PENSTOCK_MOUNTED_DIRECTORY "/run/penstock-tenant"

/* Returns the mounted directory if it contains a quota page; the environment is then ignored, so
 * that a tenant cannot choose another directory. Otherwise returns the value of
 * PENSTOCK_TENANT_DIR, or NULL if it is unset or the program is setuid. Changes errno. */
const char *penstock_tenant_directory(void);
