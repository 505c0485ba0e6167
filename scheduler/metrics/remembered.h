// Which of any number of names have a row of their own: at most so many at a time, the others are "other". Which of the
// two a name is never changes as long as anything is remembered of it. A name is forgotten kKept after its last program
// has ended.
//
// No clock, no I/O, no threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace rota::metrics {

using Time = std::chrono::nanoseconds;  // any clock that does not go back

// What a name is for as long as it is remembered. So many names have been seen at a time that nothing is remembered of
// a kUnremembered one, which is "other", too.
enum class How { kNamed, kOther, kUnremembered };

template <typename Name>
class Remembered {
 public:
  static constexpr Time kKept = std::chrono::minutes(5);
  // Of those in "other", how many are remembered. While there are more, no new name has a row of its own, and for kKept
  // after that.
  static constexpr std::size_t kMostOthers = 2000;

  explicit Remembered(std::size_t most) : most_(most) {}

  struct Joined {
    How how = How::kNamed;
    bool fresh = false;  // nothing was remembered of it
  };
  // One more program; `may_be_named`: otherwise a new name is one of the others.
  Joined join(const Name& name, Time now, bool may_be_named = true) {
    if (const auto found = named_.find(name); found != named_.end()) {
      ++found->second.programs;
      return {How::kNamed, false};
    }
    if (const auto other = others_.find(name); other != others_.end()) {
      ++other->second.programs;
      return {How::kOther, false};
    }
    const bool names = unremembered_ == 0 && (!no_names_until_ || now >= *no_names_until_);
    if (names && may_be_named && named_.size() < most_) {
      named_[name].programs = 1;
      return {How::kNamed, true};
    }
    if (others_.size() < kMostOthers) {
      others_[name].programs = 1;
      return {How::kOther, true};
    }
    ++unremembered_;
    return {How::kUnremembered, true};
  }

  // The end of a program that was `how` when it joined.
  void leave(const Name& name, How how, Time now) {
    if (how == How::kUnremembered) {
      --unremembered_;
      no_names_until_ = now + kKept;
      return;
    }
    Life& life = how == How::kNamed ? named_.at(name) : others_.at(name);
    if (--life.programs != 0) return;
    life.left = now;
    next_expiry_ = std::min(next_expiry_.value_or(now + kKept), now + kKept);
  }

  // Forgets those that are due, and calls forgotten(name, how) with each.
  template <typename Forgotten>
  void expire(Time now, const Forgotten& forgotten) {
    if (!next_expiry_ || now < *next_expiry_) return;
    next_expiry_.reset();
    const auto expire_in = [&](std::map<Name, Life>& all, How how) {
      for (auto each = all.begin(); each != all.end();) {
        const Life& life = each->second;
        if (life.programs == 0 && now >= life.left + kKept) {
          forgotten(each->first, how);
          each = all.erase(each);
          continue;
        }
        if (life.programs == 0) next_expiry_ = std::min(next_expiry_.value_or(life.left + kKept), life.left + kKept);
        ++each;
      }
    };
    expire_in(named_, How::kNamed);
    expire_in(others_, How::kOther);
  }

 private:
  struct Life {
    std::size_t programs = 0;
    Time left{};  // by the last of them
  };
  std::size_t most_;
  std::map<Name, Life> named_;
  std::map<Name, Life> others_;
  std::size_t unremembered_ = 0;
  std::optional<Time> no_names_until_;
  std::optional<Time> next_expiry_;
};

}  // namespace rota::metrics
