// What librota-core.so exports to the thin preload.
#include "runtime/interpose/attach.h"

extern "C" __attribute__((visibility("default"))) int rota_core_attach(const RotaAttachment* attachment) {
  return rota::interpose::attach(*attachment);
}
