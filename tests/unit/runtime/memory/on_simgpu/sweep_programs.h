// Two programs that take memory as PyTorch and as JAX do, and that go on, as these do, when some of it is refused.
#pragma once

namespace rota::test {

// Streams and events; a caching allocator that frees what it keeps and tries once more; expandable segments; pinned
// buffers; cudaMallocAsync's pool; a captured graph that allocates. Everything that was had is given back.
void run_like_pytorch();

// Most of the GPU in one piece, as large as it is to be had; a pinned pool; modules; command buffers; temporary memory
// in stream order; collective memory by handle.
void run_like_jax();

}  // namespace rota::test
