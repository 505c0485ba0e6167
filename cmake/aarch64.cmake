# Toolchain of the preset `aarch64`: Debian's cross compiler, and qemu-user to run its output (tools/dev test
# --thorough). It shows that thunks, symbol versions and the rest work on that processor. It proves nothing about real
# hardware's memory ordering, and so nothing about the gate: qemu runs on x86-64, whose ordering is stronger.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Only the headers of rota's libraries are compiled, which are the same for every processor. The cross compiler searches
# its own folders first and /usr/include last, so these headers come from this machine's packages, and the C and C++
# libraries are those of aarch64. The arm64 packages would need a foreign architecture in dpkg, whose shared packages
# (libc6, libstdc++6) must have exactly the installed version: apt would upgrade or refuse. The CMake files of three of
# these libraries are in a folder named after this machine's architecture.
list(APPEND CMAKE_PREFIX_PATH /usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake)

# Static, so that LD_PRELOAD applies to the emulated program and not to the emulator as well.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)

# This machine's nvcc and its libcudart build programs for this machine.
set(ROTA_NVCC "" CACHE FILEPATH "None for aarch64")
