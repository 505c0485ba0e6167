// A library that asks for a private table. Built under two names, one of them that of NVIDIA's profiling library.
__attribute__((visibility("default"))) int ask(int (*get_table)(const void**, const void*), const void** table,
                                               const void* id) {
  const int result = get_table(table, id);
  return result;  // not a tail call: the caller's address has to lie in this library
}
