// Passes for a libcudart: its SONAME and a function in both stream forms.
#define EXPORT __attribute__((visibility("default")))

extern "C" {
EXPORT int cudaThing() {
  return 0;
}
EXPORT int cudaThing_ptsz() {
  return 0;
}
EXPORT int cudaHidden() {
  return 0;
}
}
