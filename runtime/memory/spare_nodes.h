// Nodes of standard containers that stand by for the next entry. What a program allocates and frees all the time enters
// and leaves several maps of rota's each time, and malloc and free would take as long as the maps themselves.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace rota::memory {

// Of one container, or of several of the same type that share a lock. Not thread-safe.
template <typename Container>
class SpareNodes {
 public:
  using Iterator = typename Container::iterator;

  // A new entry. Of a map: its key is not there yet.
  template <typename Key, typename Value>
  Iterator add(Container& into, const Key& key, const Value& value) {
    if (spare_.empty()) return entry(into.emplace(key, value));
    typename Container::node_type node = take();
    node.key() = key;
    node.mapped() = value;
    return entry(into.insert(std::move(node)));
  }
  // The same for a set.
  Iterator add(Container& into, const typename Container::value_type& value) {
    if (spare_.empty()) return entry(into.insert(value));
    typename Container::node_type node = take();
    node.value() = value;
    return entry(into.insert(std::move(node)));
  }
  void erase(Container& from, Iterator entry) {
    typename Container::node_type node = from.extract(entry);
    if (spare_.size() < kMost) spare_.push_back(std::move(node));
  }

 private:
  static constexpr std::size_t kMost = 16;

  typename Container::node_type take() {
    typename Container::node_type node = std::move(spare_.back());
    spare_.pop_back();
    return node;
  }
  template <typename Inserted>
  static Iterator entry(const Inserted& inserted) {
    if constexpr (requires { inserted.position; }) {
      return inserted.position;
    } else if constexpr (requires { inserted.first; }) {
      return inserted.first;
    } else {
      return inserted;
    }
  }

  std::vector<typename Container::node_type> spare_;
};

}  // namespace rota::memory
