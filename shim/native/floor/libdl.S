#include "floor/stub.h"
STUB(dladdr)
STUB(dlclose)
STUB(dlopen)
STUB(dlsym)
    ret
