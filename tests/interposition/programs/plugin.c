/* A library that another one finds through its RUNPATH alone. */
int plugin_answer(void) { return 42; }
