// A library that is no driver. Linked with libcuda.so.1, so that looking for cuInit "in it" finds somebody else's.
extern "C" int cuInit(unsigned);
extern "C" __attribute__((visibility("default"))) int foreign_function() {
  return cuInit(0);
}
