// One row for each function that takes or gives back memory: a call of it on simgpu, and what the call takes.
//
// A row that takes memory says how much of it the ledger counts, and on which GPU. The policy
// (generated/driver_allocations.inc) says whether the function is redirected, counted or passed. matrix_test.cpp
// compares both with the ledger. A row that gives memory back takes some first.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "tests/unit/runtime/memory/on_simgpu/machine.h"

namespace rota::test {

struct Taken {
  std::uint64_t address = 0;  // of its entry in the ledger; 0: it has none
  std::function<void()> give_back;
};

struct Takes {
  Taken (*take)();
  int device = 1;
  std::uint64_t bytes = 0;  // counted after the call, on `device`
};

struct GivesBack {
  Taken (*take)();  // by other functions, or another row
  void (*give)(const Taken&);
  int device = 1;
  std::uint64_t bytes = 0;        // counted after take()
  std::uint64_t left = 0;         // still counted after give(); `take().give_back` gives that back
  bool leaves_something = false;  // `give_back` has to be called after give()
};

// By the files of their parts. GPU 1's primary context is current in each.
std::map<Symbol, Takes> linear_takes();
std::map<Symbol, GivesBack> linear_gives();
std::map<Symbol, Takes> mapped_takes();
std::map<Symbol, GivesBack> mapped_gives();
std::map<Symbol, Takes> graph_takes();
std::map<Symbol, GivesBack> graph_gives();

// What simgpu does not simulate: a call returns CUDA_ERROR_NOT_SUPPORTED, and nothing is counted.
const std::set<Symbol>& not_simulated();

// For the neighbour process of these tests: returns a legacy interprocess handle of 1 MiB on its GPU 1.
std::string export_memory();

}  // namespace rota::test
