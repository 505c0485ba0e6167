#include "scheduler/metrics/book.h"

#include <algorithm>

namespace rota::metrics {

Book::Place Book::join(const Uuid& uuid, std::uint32_t number, const SeriesKey& key, Time now) {
  // While somebody reads the rows, a series begins anew only after a reading has lacked it.
  if (now >= read_at_ + kKept) expire(now);
  if (!gpus_.contains(uuid)) make_place_for_gpu();
  Gpu& gpu = gpus_[uuid];
  gpu.totals.gpu = uuid;
  gpu.totals.number = number;
  Place place;
  place.gpu_ = uuid;
  place.key_ = key;
  const Id id(uuid, key);
  const bool names = unremembered_ == 0 && (!no_names_until_ || now >= *no_names_until_);
  if (const auto found = named_.find(id); found != named_.end()) {
    ++found->second.life.programs;
  } else if (const auto other = others_.find(id); other != others_.end()) {
    place.how_ = Place::How::kOther;
    ++other->second.programs;
  } else if (names && named_.size() < kMostSeries) {
    named_[id].life.programs = 1;
    ++gpu.series;
  } else {
    if (!gpu.other) gpu.other.emplace();
    if (others_.size() < kMostRemembered) {
      place.how_ = Place::How::kOther;
      others_[id].programs = 1;
    } else {
      place.how_ = Place::How::kUnremembered;
      ++unremembered_;
    }
    ++gpu.series;
  }
  const bool named = place.how_ == Place::How::kNamed;
  Named* const own = named ? &named_.at(id) : nullptr;
  place.totals_ = named ? &own->totals : &gpu.other->first;
  place.gauges_ = named ? &own->now : &gpu.other->second;
  place.gpu_totals_ = &gpu.totals;
  return place;
}

void Book::leave(const Place& place, Time now) {
  const Id id(place.gpu_, place.key_);
  Gpu& gpu = gpus_.at(place.gpu_);
  gpu.left = now;
  if (place.how_ == Place::How::kNamed) return leave(named_.at(id).life, now);
  if (place.how_ == Place::How::kOther) return leave(others_.at(id), now);
  --unremembered_;
  --gpu.series;
  no_names_until_ = now + kKept;
}

void Book::leave(Life& life, Time now) {
  if (--life.programs != 0) return;
  life.left = now;
  next_expiry_ = std::min(next_expiry_.value_or(now + kKept), now + kKept);
}

void Book::expire(Time now) {
  if (!next_expiry_ || now < *next_expiry_) return;
  next_expiry_.reset();
  const auto expire_in = [&](auto& all, const auto& life_of) {
    for (auto each = all.begin(); each != all.end();) {
      const Life& life = life_of(each->second);
      if (life.programs == 0 && now >= life.left + kKept) {
        --gpus_.at(each->first.first).series;
        each = all.erase(each);
        continue;
      }
      if (life.programs == 0) next_expiry_ = std::min(next_expiry_.value_or(life.left + kKept), life.left + kKept);
      ++each;
    }
  };
  expire_in(named_, [](const Named& each) -> const Life& { return each.life; });
  expire_in(others_, [](const Life& each) -> const Life& { return each; });
}

// The one without programs that has had none for the longest time is forgotten. One that comes back begins anew.
void Book::make_place_for_gpu() {
  if (gpus_.size() < kMostGpus) return;
  auto oldest = gpus_.end();
  for (auto each = gpus_.begin(); each != gpus_.end(); ++each) {
    if (each->second.series != 0) continue;
    if (oldest == gpus_.end() || each->second.left < oldest->second.left) oldest = each;
  }
  if (oldest != gpus_.end()) gpus_.erase(oldest);
}

GpuTotals* Book::gpu(const Uuid& uuid) {
  const auto found = gpus_.find(uuid);
  return found == gpus_.end() ? nullptr : &found->second.totals;
}

void Book::begin_gauges() {
  for (auto& [id, named] : named_) named.now = {};
  for (auto& [uuid, gpu] : gpus_) {
    if (gpu.other) gpu.other->second = {};
  }
}

std::vector<SeriesRow> Book::rows(Time now) {
  expire(now);
  read_at_ = now;
  std::vector<SeriesRow> rows;
  for (const auto& [id, named] : named_) rows.push_back({id.first, id.second, named.totals, named.now});
  for (const auto& [uuid, gpu] : gpus_) {
    // No series has such a key: cgroups' paths begin with a slash.
    if (gpu.other) rows.push_back({uuid, {kOther, kOther, kOther, kOther}, gpu.other->first, gpu.other->second});
  }
  return rows;
}

std::vector<GpuTotals> Book::gpus() const {
  std::vector<GpuTotals> all;
  for (const auto& [uuid, gpu] : gpus_) all.push_back(gpu.totals);
  std::ranges::sort(all, {}, &GpuTotals::number);
  return all;
}

}  // namespace rota::metrics
