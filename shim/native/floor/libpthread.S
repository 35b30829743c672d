#include "floor/stub.h"
STUB(pthread_attr_setstacksize)
STUB(pthread_create)
STUB(pthread_key_create)
STUB(pthread_mutex_consistent)
STUB(pthread_mutex_trylock)
STUB(pthread_mutexattr_destroy)
STUB(pthread_mutexattr_init)
STUB(pthread_mutexattr_setpshared)
STUB(pthread_mutexattr_setrobust)
STUB(pthread_once)
STUB(pthread_setspecific)
STUB(pthread_sigmask)
    ret
