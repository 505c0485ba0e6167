// The library that plugin.cpp looks for.
extern "C" __attribute__((visibility("default"))) int inner_library() {
  return 1;
}
