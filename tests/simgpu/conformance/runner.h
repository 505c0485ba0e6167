// The two sides of the program: main.cpp runs rules in processes of their own, rule.cpp is what such a process does.
#pragma once

#include <string>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"

namespace conformance {

inline constexpr const char* kKernelsVariable = "ROTA_CONFORMANCE_KERNELS";  // path of the module image
// Set: each process has memory on a second GPU as well, if there is one, before its rule begins.
inline constexpr const char* kOtherGpuVariable = "ROTA_CONFORMANCE_OTHER_GPU";
inline constexpr const char* kResultVariable = "ROTA_CONFORMANCE_RESULT";  // file that a rule's result is written to
inline constexpr int kFailed = 1;
inline constexpr int kSkipped = 77;

std::vector<Rule>& rules();
std::vector<Role>& roles();

void load_driver();  // fills cu; fails the rule where there is no driver
void release_all_blockers();
std::string program_folder();  // of this program, with a slash at the end

// Each runs in a process of its own and ends it.
[[noreturn]] void run_rule(const Rule& rule);
[[noreturn]] void run_child(const Role& role, const std::string& argument, int descriptor);

}  // namespace conformance
