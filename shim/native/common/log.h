/* The shim's log, which explains why calls were refused. The log is off unless PENSTOCK_LOG is set:
 * `1` or `stderr` means standard error, and anything else is the path of a file to append to. The
 * variable is ignored in setuid programs. */
#pragma once

__attribute__((format(printf, 1, 2))) void penstock_log(const char *format, ...);
