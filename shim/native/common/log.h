/* What the shim has to say, for people who look for the reason of a refusal. Silent unless
 * PENSTOCK_LOG is set: `1` or `stderr` writes to standard error, anything else is a file's path
 * that lines are appended to. Ignored in setuid programs. */
#pragma once

__attribute__((format(printf, 1, 2))) void penstock_log(const char *format, ...);
