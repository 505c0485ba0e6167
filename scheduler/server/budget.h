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
  struct Books {
    const std::size_t most;
    std::size_t taken = 0;
    std::map<std::string, std::size_t> of = {};
  };

 public:
  explicit Budget(std::size_t most) : books_(std::make_shared<Books>(Books{most})) {}

  // One piece, given back when this is destroyed, which may be after the budget.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept = default;
    Share& operator=(Share&& other) noexcept {
      std::swap(books_, other.books_);
      std::swap(payer_, other.payer_);
      return *this;
    }
    ~Share() {
      if (books_ == nullptr) return;
      const auto found = books_->of.find(payer_);
      --books_->taken;
      if (--found->second == 0) books_->of.erase(found);
    }
    explicit operator bool() const { return books_ != nullptr; }

   private:
    friend Budget;
    std::shared_ptr<Books> books_;
    std::string payer_;
  };

  // Empty: `payer` has as much as it may. `all`: nothing is kept for others.
  Share take(const std::string& payer, bool all = false) {
    const auto found = books_->of.find(payer);
    const std::size_t own = found == books_->of.end() ? 0 : found->second;
    const std::size_t left = books_->most - books_->taken + own;  // by others
    if (books_->taken >= books_->most || own >= (all ? left : left - left / 4)) return {};
    Share share;
    share.payer_ = payer;
    ++books_->of[payer];
    ++books_->taken;
    share.books_ = books_;
    return share;
  }
  std::size_t taken() const { return books_->taken; }
  std::size_t most() const { return books_->most; }

 private:
  std::shared_ptr<Books> books_;
};

}  // namespace rota::server
