#include "scheduler/metrics/book.h"

#include <algorithm>

namespace rota::metrics {

namespace {

constexpr std::array kNames = {&SeriesKey::user, &SeriesKey::session, &SeriesKey::cgroup, &SeriesKey::container};

bool has_other(const SeriesKey& key) {
  return std::ranges::any_of(kNames, [&](auto name) { return key.*name == Book::kOther; });
}
bool is_other(const SeriesKey& key) {
  return std::ranges::all_of(kNames, [&](auto name) { return key.*name == Book::kOther; });
}

void add(Totals& sum, const Totals& more) {
  sum.held_ns += more.held_ns;
  sum.waited_ns += more.waited_ns;
  sum.out_bytes += more.out_bytes;
  sum.in_bytes += more.in_bytes;
  sum.revocations += more.revocations;
  for (std::size_t i = 0; i < sum.refusals.size(); ++i) sum.refusals[i] += more.refusals[i];
}

}  // namespace

Book::Place Book::join(const Uuid& uuid, std::uint32_t number, const SeriesKey& key, Time now) {
  // While somebody reads the rows, a series begins anew only after a reading has lacked it.
  if (now >= read_at_ + kKept) expire(now);
  if (!gpus_.contains(uuid)) make_place_for_gpu();
  Gpu& gpu = gpus_[uuid];
  gpu.totals.gpu = uuid;
  gpu.totals.number = number;
  Place place;
  place.gpu_ = uuid;
  place.said_ = place.key_ = key;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    std::string& name = place.key_.*kNames[i];
    // One that is not known is no name.
    place.names_[i] = name.empty() ? How::kNamed : names_[i].join(name, now).how;
    if (place.names_[i] != How::kNamed) name = kOther;
  }
  const Id id(uuid, place.key_);
  const auto [how, fresh] = remembered_.join(id, now, !is_other(place.key_));
  place.how_ = how;
  if (fresh) ++gpu.series;
  Row& row = how == How::kNamed ? rows_[id] : other_of(uuid);
  place.totals_ = &row.totals;
  place.gauges_ = &row.now;
  place.gpu_totals_ = &gpu.totals;
  return place;
}

void Book::leave(const Place& place, Time now) {
  Gpu& gpu = gpus_.at(place.gpu_);
  gpu.left = now;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const std::string& name = place.said_.*kNames[i];
    if (!name.empty()) names_[i].leave(name, place.names_[i], now);
  }
  remembered_.leave({place.gpu_, place.key_}, place.how_, now);
  if (place.how_ == How::kUnremembered) --gpu.series;
}

void Book::expire(Time now) {
  remembered_.expire(now, [&](const Id& id, How how) {
    --gpus_.at(id.first).series;
    if (how != How::kNamed) return;
    const auto row = rows_.find(id);
    if (has_other(id.second)) add(other_of(id.first).totals, row->second.totals);
    rows_.erase(row);
  });
  for (auto& names : names_) names.expire(now, [](const std::string&, How) {});
}

Book::Row& Book::other_of(const Uuid& uuid) {
  std::optional<Row>& other = gpus_.at(uuid).other;
  return other ? *other : other.emplace();
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
  for (auto& [id, row] : rows_) row.now = {};
  for (auto& [uuid, gpu] : gpus_) {
    if (gpu.other) gpu.other->now = {};
  }
}

std::vector<SeriesRow> Book::rows(Time now) {
  expire(now);
  read_at_ = now;
  std::vector<SeriesRow> rows;
  for (const auto& [id, row] : rows_) rows.push_back({id.first, id.second, row.totals, row.now});
  for (const auto& [uuid, gpu] : gpus_) {
    if (gpu.other) rows.push_back({uuid, {kOther, kOther, kOther, kOther}, gpu.other->totals, gpu.other->now});
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
