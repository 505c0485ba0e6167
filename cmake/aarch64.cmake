# Toolchain of the preset `aarch64`: Debian's cross compiler, and qemu-user to run what it built (tools/dev test --thorough).
# It shows that thunks, symbol versions and the rest work on that processor. It proves nothing about the order in which real
# hardware shows one thread's writes to another, and so nothing about the gate: qemu runs on x86-64, whose order is stricter.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Of the libraries that rota uses only headers are compiled, the same for every processor. The cross compiler looks in its
# own folders first and in /usr/include last, so that they are the ones of this machine's packages, and everything of the C
# and C++ libraries is aarch64's. The arm64 packages, by contrast, would need a foreign architecture in dpkg, whose shared
# packages (libc6, libstdc++6) have to be of the very release that is installed: apt would upgrade or refuse.
# CMake's files of three of these libraries lie in a folder of this machine's architecture.
list(APPEND CMAKE_PREFIX_PATH /usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake)

# Static, so that LD_PRELOAD is the emulated program's and not the emulator's too.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)

# This machine's nvcc and its libcudart make programs for this machine.
set(ROTA_NVCC "" CACHE FILEPATH "None for aarch64")
