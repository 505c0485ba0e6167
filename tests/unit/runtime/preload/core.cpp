// A stand-in for the core: says which test the process belongs to, and leaves the calls to the driver.
#include <cstdio>

#include "runtime/preload/attachment.h"

extern "C" __attribute__((visibility("default"))) int rota_core_attach(const RotaAttachment* attachment) {
  if (attachment->version != kRotaAttachmentVersion) return 1;
  std::fprintf(stderr, "<%s>\n", attachment->test);
  return 1;
}
