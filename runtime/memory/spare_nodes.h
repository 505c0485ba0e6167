// Nodes of maps that are ready for the next entry. Each allocation and free of a program changes several maps of
// rota's, and malloc and free of their nodes would take as long as the maps themselves.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace rota::memory {

// Of one map, or of several of the same type that share a lock. Not thread-safe.
template <typename Map>
class SpareNodes {
 public:
  // Adds an entry, whose key is not there yet, best right before `hint`.
  typename Map::iterator add(Map& into, typename Map::iterator hint, const typename Map::key_type& key,
                             const typename Map::mapped_type& value) {
    return spare_.empty() ? into.emplace_hint(hint, key, value) : into.insert(hint, taken(key, value));
  }
  void add(Map& into, const typename Map::key_type& key, const typename Map::mapped_type& value) {
    if (spare_.empty()) {
      into.emplace(key, value);
    } else {
      into.insert(taken(key, value));
    }
  }
  void erase(Map& from, typename Map::iterator entry) {
    typename Map::node_type node = from.extract(entry);
    if (spare_.size() < kMost) spare_.push_back(std::move(node));
  }

 private:
  static constexpr std::size_t kMost = 16;

  typename Map::node_type taken(const typename Map::key_type& key, const typename Map::mapped_type& value) {
    typename Map::node_type node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = key;
    node.mapped() = value;
    return node;
  }

  std::vector<typename Map::node_type> spare_;
};

}  // namespace rota::memory
