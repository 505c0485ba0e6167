// How much of something scarce each user has. Nobody gets more than three quarters of what the others leave, so what
// one user takes, be it all that he may, leaves a quarter for the next.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace rota::server {

class Budget {
  struct Accounts {
    const std::size_t most;
    std::size_t taken = 0;
    std::map<std::string, std::size_t> of = {};
  };

 public:
  explicit Budget(std::size_t most) : accounts_(std::make_shared<Accounts>(Accounts{most})) {}

  // One unit, given back when this object is destroyed, which may be after the budget.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept = default;
    Share& operator=(Share&& other) noexcept {
      std::swap(accounts_, other.accounts_);
      std::swap(payer_, other.payer_);
      return *this;
    }
    ~Share() {
      if (accounts_ == nullptr) return;
      const auto found = accounts_->of.find(payer_);
      --accounts_->taken;
      if (--found->second == 0) accounts_->of.erase(found);
    }
    explicit operator bool() const { return accounts_ != nullptr; }

   private:
    friend Budget;
    std::shared_ptr<Accounts> accounts_;
    std::string payer_;
  };

  // Empty: `payer` has as much as it may. `all`: nothing is reserved for others.
  Share take(const std::string& payer, bool all = false) {
    const auto found = accounts_->of.find(payer);
    const std::size_t own = found == accounts_->of.end() ? 0 : found->second;
    const std::size_t left = accounts_->most - accounts_->taken + own;  // by others
    if (accounts_->taken >= accounts_->most || own >= (all ? left : left - left / 4)) return {};
    Share share;
    share.payer_ = payer;
    ++accounts_->of[payer];
    ++accounts_->taken;
    share.accounts_ = accounts_;
    return share;
  }
  std::size_t taken() const { return accounts_->taken; }
  std::size_t most() const { return accounts_->most; }

 private:
  std::shared_ptr<Accounts> accounts_;
};

}  // namespace rota::server
