// Reads /etc/ld.so.cache, in which the loader finds most libraries. rota has to read it itself: asked for
// "libcuda.so.1", the loader would return this library. The format is glibc's "glibc-ld.so.cache1.1"
// (sysdeps/generic/dl-cache.h), also where it follows the older table in the same file.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rota::thin {

// The path of the cursor's or a later entry named `name` for 64-bit libraries of this machine; null when there is none
// left or the file is damaged. Start with *cursor = 0; it moves behind what was returned. The result lies inside data.
const char* next_in_ld_cache(const char* data, size_t size, const char* name, uint32_t* cursor) noexcept;

}  // namespace rota::thin
