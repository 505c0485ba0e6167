// Pointers to driver functions that the driver itself hands out.
#pragma once

namespace rota::interpose {

// The answer that a driver of `driver_version` (as cuDriverGetVersion gives it; 0: no driver, every version allowed)
// with our list of functions gives to cuGetProcAddress, for drivers that have none of their own (before 11.3) or
// machines without a driver. Returns a CUresult; *function is the shim's own pointer or null; *status a
// CUdriverProcAddressQueryResult. The rules are those of the recorded table tests/data/cugetprocaddress-580.159.txt.
int emulated_proc_address(const char* name, int version, unsigned long long flags, int driver_version, void** function,
                          int* status) noexcept;

}  // namespace rota::interpose
