// How programs share a GPU whose memory fits together: all at once, in turns, or those that use little of it at any
// time and the others in turns. Neither is always better. Turns beat the driver's own time slicing for programs that
// keep a GPU busy, and waste what their holder leaves idle for those that do not.
//
// So it is measured, for each set of programs that have called lately (*active*):
//
//   u  the part of its own time, in which it does not wait for its turn, that the GPU works for a program, by samples
//   r  its calls a second: of its own time, as if it were alone; and of all time, in each candidate
//
// All run at once at first, and as long as no two of them keep the GPU busy for milliseconds on end at the same time
// (they *collide*): then nothing is to be gained by turns. Once they do, all take turns, for 400 ms or until there are
// samples enough of everybody. Then the candidate that u speaks for is tried for half a second: kLightOpen where
// several programs keep the GPU busy and others are light, else kTogether. It stays unless the sum of r / r alone is
// below what turns gave. The answer is remembered for that set and asked for again after 10 s, 20 s, up to 5 minutes;
// where turns were better by far and nobody's u has changed, without another trial; and where nobody takes turns, only
// if programs collide.
//
// Programs count in that if they held the GPU or waited for it nearly all of the time, or come again and again within
// milliseconds, and have made no long pause lately (they *contend*). Of others, which come in bursts or are about to
// start, such short times tell nothing, and to be let in at once is what counts. Where fewer than two contend, heavy
// programs take turns, light ones run at any time, and it is looked again soon.
//
// Who has handed memory to other processes runs at any time: they may have to run beside it. And where programs have
// not fitted together within 10 s, their memory decides, not this.
//
// Turns are as long as their hand-overs make worth while: twenty times as long, or thirty times where memory moves.
// Where Unified Memory does not fit they are as long as the settings say.
#pragma once

#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

class Sharing {
 public:
  // Who has not called for so long does not count.
  static constexpr Time kActive = std::chrono::seconds(10);
  // In windows of so long, the first of a new set shorter, it is seen whether programs collide: there are so many
  // samples at least, and so many of them are of long spells (event::Activity).
  static constexpr Time kWindow = std::chrono::milliseconds(100);
  static constexpr Time kFirstWindow = std::chrono::milliseconds(60);
  static constexpr std::uint64_t kCollides = 10;
  // How long the samples of a new set may take, and how many of each program are enough: 100 give +-0.05.
  static constexpr Time kProbe = std::chrono::milliseconds(400);
  static constexpr std::uint64_t kEnough = 100;
  static constexpr std::uint64_t kFew = 20;  // fewer say nothing
  // The first part of each is not measured: holders come in or go, queues fill. What was queued before there were turns
  // is waited for.
  static constexpr Time kSettling = std::chrono::milliseconds(30);
  static constexpr Time kLongestSettling = std::chrono::seconds(2);
  static constexpr Time kTrial = std::chrono::milliseconds(450);
  static constexpr double kLight = 0.6;
  static constexpr double kSaturating = 0.85;
  // Below this share of what turns gave, a trial is not repeated while every u is within so much of what it was.
  static constexpr double kByFar = 0.97;
  static constexpr double kSameU = 0.1;
  // A trial that was better by so much is not doubted so soon: to look again costs some turns.
  static constexpr double kClearly = 1.1;
  static constexpr int kClearlyLater = 6;
  // Who contends: the part of the time in which it held the GPU or waited for it, or how often it came in it.
  static constexpr double kContends = 0.9;
  static constexpr std::uint64_t kComesOften = 10;
  // Who has lately come back after so long a pause comes in bursts. Where all run at once a pause is not seen but in
  // its calls, and may be a long kernel.
  static constexpr Time kLongPause = std::chrono::milliseconds(100);
  static constexpr Time kWithoutCalls = std::chrono::milliseconds(500);
  static constexpr Time kLately = std::chrono::seconds(5);
  // What was found is doubted if those of whom it was measured turn out to come in bursts, or to be faster than they
  // were alone, since they were still starting.
  static constexpr Time kDoubted = std::chrono::seconds(2);
  static constexpr double kFaster = 1.15;
  static constexpr double kFewCalls = 10;  // a second
  static constexpr int kMostDoubts = 6;
  static constexpr Time kSoonAgain = std::chrono::seconds(1);
  static constexpr Time kFirstAgain = std::chrono::seconds(10);
  static constexpr Time kLastAgain = std::chrono::minutes(5);
  // Turns: 20 times what a hand-over costs, between these. Where programs do not fit, and memory moves at each, 30
  // times: who does not need the GPU for long does not wait for the end of a turn.
  static constexpr int kTurnPerSwitch = 20;
  static constexpr int kTurnPerMove = 30;
  static constexpr Time kShortestTurn = std::chrono::milliseconds(50);
  static constexpr Time kLongestTurn = std::chrono::seconds(5);
  static constexpr Time kLongestWithMoves = std::chrono::seconds(15);
  // While samples are taken: everybody is to come to its turn. And how often it is seen whether there are enough.
  static constexpr Time kProbeTurn = std::chrono::milliseconds(20);
  // How far behind a program may be that comes back after a pause.
  static constexpr Time kCredit = std::chrono::milliseconds(100);

  // Both outlive it; the settings may change.
  Sharing(const Settings& settings, Bookkeeping& books);

  void heard(Client& client, const event::Activity& activity, Time now);
  // It has come to the gate: it is active.
  void wants(Client& client, Time now);
  void came(GpuIndex gpu);  // somebody to this GPU
  void left(ClientId client);
  void configured();  // the settings have changed
  // What programs that come and go change, and time once it is due().
  void judge(GpuIndex gpu, Time now);

  // Whether this client is not to run beside those who hold the GPU, as far as their memory does not decide that.
  bool conflicts(const Client& client, GpuIndex gpu) const;
  // Whether it runs at any time, and so is in nobody's way, unless its memory is.
  bool open_to(const Client& client, GpuIndex gpu) const;
  // Whether memory that does not fit comes page by page once its owner runs: no hand-over shows what that costs.
  bool pages_in(GpuIndex gpu) const;
  // GPUs where somebody runs at any time.
  GpuMask beside() const { return beside_; }
  // How long a turn lasts while others wait.
  Time turn(GpuIndex gpu) const;

  Candidate candidate(GpuIndex gpu) const { return laws_[gpu].candidate; }
  std::uint32_t active(GpuIndex gpu) const { return static_cast<std::uint32_t>(laws_[gpu].set.size()); }
  Time switching(GpuIndex gpu) const { return laws_[gpu].switching; }
  // What was tried last with those who are active gave so much of what turns gave; 0: nothing was tried.
  double trial(GpuIndex gpu) const;
  // Whether nothing is known of those who are active, so that all run until they collide; and whether it is not for
  // this to decide.
  bool watching(GpuIndex gpu) const { return laws_[gpu].phase == Phase::kWatching; }
  bool undecided(GpuIndex gpu) const { return laws_[gpu].phase == Phase::kUndecided; }
  // Where samples are taken, where something is being found out at all, and where several are active who may take
  // turns.
  GpuMask sampling() const { return sampling_; }
  GpuMask looking() const { return looking_; }
  GpuMask metered() const { return metered_; }

  std::optional<Time> next_deadline() const;
  // GPUs where time has come to decide something, by what all clients have been heard to say until now.
  GpuMask due(Time now);

 private:
  enum class Phase {
    kUndecided,  // fewer than two are active, or it is not for this to decide
    kWatching,   // nothing is known of this set; all run until they collide
    kProbing,    // in turns, for samples
    kTrying,     // a candidate
    kSettled,
  };
  struct Answer {
    std::vector<ClientId> set;
    Candidate candidate;
    std::vector<ClientId> light;
    Time again_at;
    Time pause;
    std::vector<double> u;  // of the set, when a candidate was tried last,
    double ratio = 0;       // and what it gave of what turns did; 0: none was
    int doubts = 0;         // how often it has been doubted
  };
  struct Law {
    Candidate candidate = Candidate::kTogether;
    Phase phase = Phase::kUndecided;
    std::vector<ClientId> set;    // active, by number
    std::vector<ClientId> light;  // of those, in kLightOpen
    Time look_at{};               // when time alone changes something; 0: never
    bool stale = true;            // `set` may be another by now
    Time until = Time::max();     // as long as it is not, if nothing happens
    Time crowded_at{};            // when they last did not fit together; 0: never
    bool decides = false;         // it is for this to decide
    bool news_beside = true;      // who runs beside others' turns may be another by now
    Time since{};                 // of the phase, or of its measurement
    Time window_since{};
    Time samples_at{};       // when it is seen whether there are samples enough
    bool measuring = false;  // the settling is over
    double in_turns = 0;     // what turns gave: the contenders' sum of r / r alone
    double ratio = 0;        // what the last trial gave of that
    Time switching{};
    std::vector<Answer> answers;
  };

  bool decides(GpuIndex gpu) const { return laws_[gpu].decides && !books_.gpu(gpu).crowded; }
  void renew_decides(Law& law, GpuIndex gpu, Time now);
  void renew_beside(Law& law, GpuIndex gpu, Time now);
  static bool all_run(const Law& law);
  void begin_window(Law& law, GpuIndex gpu, Time now);
  bool drains(const Law& law, GpuIndex gpu, Time now) const;
  bool collide(const Law& law, GpuIndex gpu) const;
  static Time next_look(Law& law);
  void go_on(Law& law, GpuIndex gpu, Time now);
  void look_again(Law& law, GpuIndex gpu, Time now);
  void may_join(const Client& client);
  void renew_switching(GpuIndex gpu, Time now);
  bool renew_set(Law& law, GpuIndex index, Time now);
  void begin(Law& law, Phase phase, Candidate candidate, Time now);
  void begin_measuring(Law& law, GpuIndex gpu, Time now);
  bool weigh(Client& client, Measurement& measurement, Time passed, Time now);
  void choose(Law& law, GpuIndex gpu, Time now);
  void compare(Law& law, GpuIndex gpu, Time now);
  void settle(Law& law, GpuIndex gpu, Candidate candidate, Time first, Time last, Time now);
  bool doubtful(const Law& law, const Answer& known, GpuIndex gpu, Time now) const;
  static bool in_bursts(const Evidence& evidence, Time now);
  bool has_samples(const Law& law, GpuIndex gpu) const;
  std::vector<double> all_u(const Law& law, GpuIndex gpu) const;
  Measurement& measurement(ClientId client, GpuIndex gpu) const;
  static Answer* answer(Law& law);

  const Settings& settings_;
  Bookkeeping& books_;
  std::vector<Law> laws_;
  GpuMask timed_ = 0;
  GpuMask due_ = 0;
  GpuMask beside_ = 0;
  GpuMask sampling_ = 0;
  GpuMask looking_ = 0;
  GpuMask metered_ = 0;
};

}  // namespace rota::scheduler
