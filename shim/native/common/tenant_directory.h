/* Where this process's tenant has its pages. */
#pragma once

/* Where a container has its tenant directory mounted. Not below /run/penstock, which on a machine
 * whose root runs tenants may not be looked into: that must not be taken for a mount. */
#define PENSTOCK_MOUNTED_DIRECTORY "/run/penstock-tenant"

/* The mounted directory if it holds a quota page: the environment is not asked then, so that a
 * tenant cannot choose another one. Else PENSTOCK_TENANT_DIR; NULL without that, and in setuid
 * programs. Changes errno. */
const char *penstock_tenant_directory(void);
