// Two programs that take memory as PyTorch and JAX do, and that continue, as these do, when some of it is refused.
#pragma once

namespace rota::test {

// Streams and events; a caching allocator that frees its cache and tries once more; expandable segments; pinned
// buffers; cudaMallocAsync's pool; a captured graph that allocates. Everything is freed in the end.
void run_like_pytorch();

// Most of the GPU in one allocation, as large as possible; a pinned pool; modules; command buffers; temporary memory in
// stream order; collective memory by handle.
void run_like_jax();

}  // namespace rota::test
