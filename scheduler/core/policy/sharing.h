// How programs share a GPU that their memory fits: all at once, in turns, or those that use little of it at any time
// and the others in turns. None is always best. Turns beat the driver's own time slicing for programs that keep a GPU
// busy, but waste whatever their holder leaves idle.
//
// So it is measured, for each set of programs that have made calls lately (*active*):
//
//   u  the fraction of a program's own time, in which it does not wait for its turn, that the GPU works for it; sampled
//   r  its calls per second: of its own time, as if it had the GPU exclusively; and of all time, with each candidate
//
// At first all run at once, and they continue to as long as no two of them keep the GPU busy for milliseconds on end at
// the same time (*collide*), since until then turns gain nothing. Once they collide, all take turns for 400 ms, or
// until there are enough samples of each. Then what may be better is tried for half a second: kTogether, and if several
// programs are heavy and others light also kLightOpen, each for half of that. The better one is applied unless its sum
// of r / r alone is below what turns gave. The answer is remembered for that set and measured again after 10 s, 20 s,
// and so on, up to 5 minutes; without another trial if turns were clearly better and no program's u has changed; and,
// while no program takes turns, only if programs collide.
//
// This counts programs that held the GPU or waited for it nearly all of the time, or come back again and again within
// milliseconds, and have made no long pause lately (they *contend*). Other programs come in bursts or are about to
// start: such short measurements say nothing about them, and they need to be let in at once. If fewer than two contend,
// heavy programs take turns, light ones run at any time, and the check is repeated soon.
//
// A program that shares memory with other processes runs at any time: they may have to run concurrently with it. And if
// programs have not fitted together within the last 10 s, their memory decides instead.
//
// GPUs that some programs use together (active.h) are measured and decided on as one: what one of these programs does
// on each of them depends on its turns on all others, but for those where their memory decides.
//
// Turns are as long as their hand-overs make worthwhile: twenty times as long, or thirty times where memory moves.
// Where Unified Memory does not fit, the settings determine their length.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/policy/active.h"

namespace rota::scheduler {

class Sharing {
 public:
  // Collisions are looked for in windows of this length; the first window of a new set is shorter. A program collides
  // if at least kCollides of its samples belong to long busy periods (event::Activity), or if it made calls and there
  // are fewer samples than that.
  static constexpr Time kWindow = std::chrono::milliseconds(100);
  static constexpr Time kFirstWindow = std::chrono::milliseconds(60);
  static constexpr std::uint64_t kCollides = 10;
  // How long sampling of a new set may take, and how many samples of each program are enough: 100 give +-0.05.
  static constexpr Time kProbe = std::chrono::milliseconds(400);
  static constexpr std::uint64_t kEnough = 100;
  static constexpr std::uint64_t kFew = 20;  // fewer are ignored
  // The first part of each phase is not measured: holders come or yield, and queues fill. Work that was queued before
  // turns began is waited for.
  static constexpr Time kSettling = std::chrono::milliseconds(30);
  static constexpr Time kLongestSettling = std::chrono::seconds(2);
  static constexpr Time kTrial = std::chrono::milliseconds(450);
  static constexpr Time kTrialOfTwo = std::chrono::milliseconds(210);  // each, if two candidates are tried
  static constexpr double kLight = 0.6;
  // If a trial gave less than this fraction of what turns gave, it is not repeated while every u is within kSameU of
  // its old value.
  static constexpr double kByFar = 0.97;
  static constexpr double kSameU = 0.1;
  // A trial that was better by this factor is checked again later, since each check costs some turns.
  static constexpr double kClearly = 1.1;
  static constexpr int kClearlyLater = 6;
  // A program contends if it held the GPU or waited for it for this fraction of the time, or came back this often.
  static constexpr double kContends = 0.9;
  static constexpr std::uint64_t kComesOften = 10;
  // A program that has lately come back after a pause this long comes in bursts. While all run at once, a pause shows
  // only in its calls, and may be a long kernel.
  static constexpr Time kLongPause = std::chrono::milliseconds(100);
  static constexpr Time kWithoutCalls = std::chrono::milliseconds(500);
  static constexpr Time kLately = std::chrono::seconds(5);
  // An answer is doubted if the programs that were measured turn out to come in bursts, or to be faster than they were
  // alone, because they were still starting.
  static constexpr Time kDoubted = std::chrono::seconds(2);
  static constexpr double kFaster = 1.15;
  static constexpr double kFewCalls = 10;  // per second
  static constexpr int kMostDoubts = 6;
  static constexpr Time kSoonAgain = std::chrono::seconds(1);
  static constexpr Time kFirstAgain = std::chrono::seconds(10);
  static constexpr Time kLastAgain = std::chrono::minutes(5);
  // The length of turns: 20 times the duration of a hand-over, within these limits. Where programs do not fit and
  // memory moves at each hand-over, 30 times: a holder that needs the GPU only briefly gives it back before its turn
  // ends.
  static constexpr int kTurnPerSwitch = 20;
  static constexpr int kTurnPerMove = 30;
  static constexpr Time kShortestTurn = std::chrono::milliseconds(50);
  static constexpr Time kLongestTurn = std::chrono::seconds(5);
  static constexpr Time kLongestWithMoves = std::chrono::seconds(15);
  // The turn while samples are taken, so that every program gets its turn; also how often rotad checks whether there
  // are enough samples.
  static constexpr Time kProbeTurn = std::chrono::milliseconds(20);
  // How far behind the mean a program may be placed that comes back after a pause.
  static constexpr Time kCredit = std::chrono::milliseconds(100);

  // The arguments must outlive this object; the settings may change.
  Sharing(const Settings& settings, Bookkeeping& books);

  void heard(Client& client, const event::Activity& activity, Time now);
  // The client has come to the gate: it is active.
  void wants(Client& client, Time now);
  void came(GpuIndex gpu);  // a client touched this GPU
  void left(ClientId client);
  // What an earlier rotad had measured (event.h), and the same for a later one.
  void measured_before(const Client& client, const event::MeasuredBefore& before, Time now);
  std::vector<event::MeasuredBefore> measured(Time now) const;
  void configured();  // the settings have changed
  // Applies what changes on these GPUs when programs come and go, and what time changes once it is due(). Marks other
  // GPUs as changed in the accounting if that affects them.
  void judge(GpuMask gpus, Time now);

  // Whether this client must not run concurrently with the holders of the GPU, for reasons other than their memory.
  bool conflicts(const Client& client, GpuIndex gpu) const;
  // Whether it may run at any time, and so is in nobody's way, unless its memory is.
  bool open_to(const Client& client, GpuIndex gpu) const;
  // Whether memory that does not fit comes in page by page once its owner runs: hand-overs do not show that cost.
  bool pages_in(GpuIndex gpu) const;
  // GPUs on which some client runs at any time.
  GpuMask beside() const { return beside_; }
  // How long a turn lasts while others wait.
  Time turn(GpuIndex gpu) const;

  Candidate candidate(GpuIndex gpu) const { return law(gpu).candidate; }
  std::uint32_t active(GpuIndex gpu) const { return static_cast<std::uint32_t>(active_.on(gpu).size()); }
  Time switching(GpuIndex gpu) const { return gpus_[gpu].switching; }
  // What was tried last with the active programs, relative to what turns gave; 0 if nothing was tried.
  double trial(GpuIndex gpu) const;
  // Whether nothing is known about the active programs, so that all run until they collide; and whether this class does
  // not decide.
  bool watching(GpuIndex gpu) const { return law(gpu).phase == Phase::kWatching; }
  bool undecided(GpuIndex gpu) const { return law(gpu).phase == Phase::kUndecided; }
  // GPUs on which samples are taken; on which something is being measured at all; and on which several programs are
  // active that may take turns.
  GpuMask sampling() const { return sampling_; }
  GpuMask looking() const { return looking_; }
  GpuMask metered() const { return metered_; }

  std::optional<Time> next_deadline() const;
  // GPUs on which a decision is due, based on what all clients have reported so far.
  GpuMask due(Time now);

 private:
  enum class Phase {
    kUndecided,  // fewer than two are active, or this class does not decide
    kWatching,   // nothing is known about this set; all run until they collide
    kProbing,    // turns, to take samples
    kTrying,     // a trial of a candidate
    kSettled,
  };
  struct Answer {
    std::vector<ClientId> set;
    Candidate candidate;
    std::vector<ClientId> light;
    Time again_at;
    Time pause;
    std::vector<double> u;  // of the set, when a candidate was tried last
    double ratio = 0;       // what that trial gave relative to turns; 0: there was none
    int doubts = 0;         // how often the answer has been doubted
  };
  // For GPUs that are decided on together.
  struct Law {
    GpuMask gpus = 0;
    Candidate candidate = Candidate::kTogether;
    Phase phase = Phase::kUndecided;
    std::vector<ClientId> set;    // active clients, sorted
    std::vector<ClientId> light;  // light ones of the set, for kLightOpen
    bool decides = false;         // this class decides
    bool news = true;             // the candidate, or whether this class decides, has changed
    Time since{};                 // when the phase, or its measurement, began
    Time window_since{};
    Time samples_at{};        // when to check whether there are enough samples
    bool measuring = false;   // the first, unmeasured part is over
    double in_turns = 0;      // what turns gave: the sum of r / r alone over the contenders
    double ratio = 0;         // what the last trial gave relative to that
    bool tries_both = false;  // first kTogether, then kLightOpen
    std::vector<Answer> answers;
  };
  struct OnGpu {
    Time look_at{};           // when to check again even if nothing happens; 0: never
    Time crowded_at{};        // when the programs last did not fit together; 0: never
    bool news_beside = true;  // which clients run concurrently with others' turns may have changed
    Time switching{};
  };

  static double seconds(Time time) { return std::chrono::duration<double>(time).count(); }
  Law& law(GpuIndex gpu) { return laws_[first_of(active_.group(gpu))]; }
  const Law& law(GpuIndex gpu) const { return laws_[first_of(active_.group(gpu))]; }
  static GpuIndex first_of(GpuMask gpus) { return static_cast<GpuIndex>(std::countr_zero(gpus)); }
  bool decides(GpuIndex gpu) const { return law(gpu).decides && !books_.gpu(gpu).crowded; }
  void judge(Law& law, bool other, Time now);
  void renew_crowded(GpuIndex gpu, Time now);
  void renew_beside(const Law& law, GpuIndex gpu, Time now);
  static bool all_run(const Law& law);
  void begin_window(Law& law, Time now);
  bool drains(const Law& law, Time now) const;
  template <typename Which>
  bool several_on_one(const Law& law, Which which) const;
  bool collide(const Law& law) const;
  bool contended(const Law& law) const;
  static Time next_look(Law& law);
  void go_on(Law& law, Time now);
  void look_again(Law& law, Time now);
  void may_join(const Client& client);
  void renew_switching(GpuIndex gpu, Time now);
  void begin(Law& law, Phase phase, Candidate candidate, Time now);
  void begin_measuring(Law& law, Time now);
  static bool weigh(Client& client, Time passed, Time now);
  void choose(Law& law, Time now);
  void compare(Law& law, Time now);
  void apply(Law& law, Candidate candidate, Time first, Time last, Time now);
  bool doubtful(const Law& law, const Answer& known, Time now) const;
  static bool in_bursts(const Evidence& evidence, Time now);
  bool has_samples(const Law& law) const;
  std::vector<double> all_u(const Law& law) const;
  static Answer* answer(Law& law);
  static void add_answer(Law& law, Answer answer);

  const Settings& settings_;
  Bookkeeping& books_;
  Active active_;
  std::vector<OnGpu> gpus_;
  std::vector<Law> laws_;  // each at the first of its GPUs
  // By number: sets of which not all clients have been told.
  std::map<std::uint32_t, std::map<ClientId, event::MeasuredBefore>> told_;
  GpuMask timed_ = 0;
  GpuMask due_ = 0;
  GpuMask crowded_ = 0;  // where programs have not fitted together lately
  GpuMask beside_ = 0;
  GpuMask sampling_ = 0;
  GpuMask looking_ = 0;
  GpuMask metered_ = 0;
};

}  // namespace rota::scheduler
