// rotad's server: turns what clients send into events for the core, and the core's decisions into lease pages.
//
// One thread, one io_context. What a client sends is checked (decode.h), what it does not read is not queued
// (connection.h), and it is dead when its process is (a pidfd), not when its socket closes. What one client can do to
// another is in scheduler/ISOLATION.md.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/core/claims.h"
#include "scheduler/limits/limit_event.h"
#include "scheduler/limits/quota.h"
#include "scheduler/metrics/book.h"
#include "scheduler/server/alarm.h"
#include "scheduler/server/assumed_contexts.h"
#include "scheduler/server/config.h"
#include "scheduler/server/connection.h"
#include "scheduler/server/control.h"
#include "scheduler/server/event_log.h"
#include "scheduler/server/gpu_choice.h"
#include "scheduler/server/gpu_table.h"
#include "scheduler/server/holder_link.h"
#include "scheduler/server/inherited.h"
#include "scheduler/server/journal.h"
#include "scheduler/server/leases.h"
#include "scheduler/server/limits.h"
#include "scheduler/server/memory_reserve.h"
#include "scheduler/server/meter.h"
#include "scheduler/server/modelled_time.h"
#include "scheduler/server/paced.h"
#include "scheduler/server/page.h"
#include "scheduler/server/place.h"
#include "scheduler/server/user_names.h"

namespace rota::server {

namespace limit = scheduler::limit;

class MetricsServer;
struct Books;

struct Options : Configuration {
  // Reads what may change while rotad runs; without it nothing can be read again.
  std::function<Result<Configuration>()> reread;
  std::string socket;          // where to listen; its folder is created if necessary
  std::string control;         // where settings are changed; empty: protocol::control_path of the socket
  std::string lock_directory;  // one lock file per GPU; empty: the machine's usual place, which is not created
  std::string event_log;       // file for events and decisions; empty: none
  // Exit after this time without a client; nothing: never.
  std::optional<std::chrono::milliseconds> idle_exit;
  // How long a live process whose connection closed keeps its lease: it may come back.
  std::chrono::milliseconds reconnect_time = std::chrono::seconds(1);
  // Real seconds per second of the settings' durations, for a simulated GPU whose time is stretched.
  double time_scale = 1;
};

class Server final : public ConnectionOwner, private Leases {
 public:
  // Takes the socket's lock and listens. The error says who else serves this socket, or what cannot be created.
  // Inherited listeners are used as they are, and stay open.
  static Result<std::unique_ptr<Server>> open(asio::io_context& io, Options options, Inherited inherited = {});
  ~Server();

  // Starts to accept; returns at once. Ends the io_context's work when idle for idle_exit.
  void start();
  // Runs until it is stopped. While a holder drains for another client it does not sleep.
  void run();
  // Does what is due, as run() does it, and returns.
  void poll();
  // Leaves to the next rotad at this place what it cannot learn from the programs (books.h).
  void leave_books_to_next();
  // Closes everything and removes the socket, unless it is inherited; io_context::run returns when nothing else keeps
  // it.
  void stop();
  // Reads the configuration again; what may change holds for all programs at once. Says what has changed, and what
  // takes effect only after a restart. With an error nothing has changed. Both have been logged.
  Result<std::string> reload();

 private:
  struct Client;
  struct Stayer;

  Server(asio::io_context& io, Options options, LockPlace locks, LockFile lock, Listener listener, Listener control,
         EventLog event_log);

  // Whether this is the machine's rotad, for all users.
  bool is_machine() const;
  void accept();
  void accept_all();
  void accept_later();
  void take_in(Descriptor&& socket);
  void on_message(Connection& connection, const protocol::Message& message) override;
  void on_descriptors(Connection& connection, const protocol::Message& message) override;
  void on_end(Connection& connection, const std::string& problem) override;
  void on_hello(Connection& connection, const protocol::Message& message);
  void on_add_gpu(Connection& connection, Client& client, const protocol::AddGpu& gpu);
  void serve_gpu(Client& client, const protocol::AddGpu& gpu);
  void refuse_gpu(Client& client, const std::string& gpu);
  void on_stay(Connection& connection);
  bool watch_stayer(pid_t pid, Descriptor process, Budget::Share share);
  void choose_gpus(Connection& connection, const protocol::Choose& wanted);
  void chosen_came(const Client& client, const Uuid& uuid);
  void leave_chosen(Books& books);
  void take_chosen(const Books& books);
  Result<std::string> carry(const ControlRequest& request);
  void change_limits(const LimitSettings& limits);
  void on_status(Connection& connection);
  void hang_up(Connection& connection, const std::string& reason);
  // The number of the domain whose share of a GPU the client uses; counts one more client in that domain.
  scheduler::DomainId take_number(Client& client);
  void leave_number(const Client& client);
  scheduler::DomainId number_of_payer(const std::string& payer, bool* numbered = nullptr);
  void watch_process(scheduler::ClientId id);
  void remove_client(scheduler::ClientId id, const char* why);
  void forget_client(scheduler::ClientId id);
  void drop_connection(Connection& connection);

  // what leases need
  Program* program(scheduler::ClientId id) const override;
  scheduler::Time now() const override;
  scheduler::Time modelled_now() const override;
  scheduler::Time real(scheduler::Time modelled) const override { return time_.real(modelled); }
  bool may_grow() override { return reserve_.is_whole(); }
  std::optional<scheduler::Time> withdraw_by() const override;
  scheduler::SessionId session_of(const Program& program) const override;
  scheduler::event::Usage usage_of(const Program& program, std::uint32_t gpu) const override;
  scheduler::GangDrain::Word rest_of(const Program& program, const Task& task) const override;
  void read_activity(Program& program) override;
  void coupled(scheduler::GpuMask gpus) override;
  void stepped(const scheduler::Event& event, scheduler::Time time,
               const std::vector<scheduler::Decision>& decisions) override;
  void decided(Program& program, const scheduler::Decision& decision) override;
  void remark(const std::string& text) override;
  unsigned number_of(std::uint32_t gpu) const override { return gpus_.number(gpu); }
  void publish_all(scheduler::Time time) override;

  // claiming.cpp: GPUs that another rotad has, by their UUIDs as text.
  struct Elsewhere {
    std::unique_ptr<HolderLink> link;  // null: that one cannot be connected to
    std::string owner;                 // as its lock says
    std::string problem;               // why the lock cannot be taken at all
    bool answered = false;             // it has said who it is, or had the time to
    std::unique_ptr<asio::steady_timer> timer;
    std::chrono::milliseconds retry{10};
  };
  void claim(scheduler::Claims::Actions actions);
  void carry_out(const scheduler::Claims::Action& action);
  std::string first_to_name(const std::string& gpu) const;
  void try_lock(const std::string& gpu);
  void say_holder(const std::string& gpu);
  void on_yielded(const std::string& gpu, const protocol::DoorYielded& yielded);
  std::string elsewhere_text(const Elsewhere& elsewhere);
  bool movers_may_come(std::uint32_t gpu) const;
  void try_again_soon(Client& client, const protocol::AwaitRoom& wanted);
  void send_away(Client& client);
  void on_asked(uid_t uid);
  void withdraw();
  void check_if_quiet();
  void take_back();
  void let_go();
  void schedule_claims();
  void look_for_machine();

  void on_passed_on(scheduler::ClientId donor, scheduler::ClientId recipient, const protocol::Extent& extent);
  const Client* recipient_of(const Client& donor, std::uint32_t gpu) const;
  bool hands_over(const Client& client, std::uint32_t gpu) const;
  void publish_recipients();
  void publish_hand_overs();
  void announce(Client& client, const protocol::ProcessNumber& number);
  Client* announcer(const protocol::ProcessNumber& number, const Client& asks) const;
  void introduce(Connection& connection, Client& client, const protocol::Introduce& wanted);
  void opened(Client& client, const protocol::Opened& said);
  void forget_opened(const Client& client);
  void tell_memory_wait();
  void await_room(Client& client, const protocol::AwaitRoom& wanted);
  void tell_stays(Client& client, std::uint32_t gpu);
  void tell_stays_of_all();
  void read_rooms();
  static scheduler::Bytes stays_of(const Client& client, std::uint32_t gpu);

  scheduler::LimitDecisions apply(const scheduler::LimitEvent& event);
  void follow_host();
  void on_limits(Client& client, const protocol::Message& message);
  void join_session(Client& client, const std::string& key);
  void leave_session(const std::string& key);
  void carry_out(const scheduler::Quota::Outcome& outcome);
  void tighten(Client& client);
  void publish_limits(Client& client);
  void publish_limits_to_all();
  void follow_outside();
  void publish_contexts(std::uint32_t gpu);
  void publish_contexts_of(Client& client, scheduler::GpuMask gpus);
  void publish_contexts_to_all();
  void publish_too_much(std::uint32_t gpu);
  void share_host();
  void share_host_now();
  void bound_host(Client& client);
  void publish_share(Client& client);
  void read_host(Client& client);
  scheduler::Quota::HostUse host_use(Client& client) const;
  void tell(Client& client, const protocol::Message& message);

  void take_all_gpus();
  void keep_all_gpus();
  void measure();
  Result<std::string> use_nvml(bool use);
  bool measure_soon();
  void measure_for_requests(const std::set<scheduler::GpuIndex>& gpus);
  bool is_measurable(const Client& client, std::uint32_t gpu) const;
  bool answers_when_read(const Client& client, std::uint32_t gpu, const protocol::Message& added);
  void answer_late();
  void answer_read(scheduler::Time asked);
  void answer_all();
  void tell_added(scheduler::ClientId id, const protocol::Message& added);
  void count_not_measured(const Client& client);
  void on_measured(const Meter::Answer& answer);
  void measure_client(Client& client, std::uint32_t gpu, const GpuReading& reading);
  void take_measurement(Client& client, std::uint32_t gpu, scheduler::Bytes process);
  static bool is_trusted(const Client& client);
  static std::tuple<pid_t, std::string, std::uint32_t> process_of(const Client& client, std::uint32_t gpu);
  scheduler::Bytes contexts_before(const Client& client, std::uint32_t gpu, scheduler::Bytes enough) const;
  scheduler::Bytes believed_context(const Client& client, std::uint32_t gpu, scheduler::Bytes said) const;
  void confirm(Client& client, std::uint32_t gpu);
  void follow_size(std::uint32_t gpu);
  static bool has_uncounted(const Client& client, std::uint32_t gpu);
  bool has_said_what_it_brings(const Client& client, std::uint32_t gpu) const;
  scheduler::Bytes uncounted_bytes(std::uint32_t gpu, const GpuReading& reading);
  std::optional<scheduler::Bytes> bytes_of_others(std::uint32_t gpu, const GpuReading& reading);
  void forget_old_measurements();

  void publish(Client& client);
  void publish(const Client& client, const Task& task);
  static bool may_share_with(const Client& client, const Client& other);
  std::uint32_t watch_of(const Client& client, const Task& task) const;
  std::string who(const Client& client);
  JournalFields fields_of(const Client& client, const char* event, const char* message_id, const GpuSet& gpus);
  void report_revoked(Client& client, const scheduler::Decision& decision);
  void report_refused(Client& client, const scheduler::Quota::Answer& answer);
  void report_no_room(Client& client, const scheduler::RoomQueue::Answer& answer);
  void report_left_out(const Client& client);
  void report_passed_over(Client& client, const scheduler::Decision& decision) const;
  void read_usage(Client& client);
  void tell_pinned(Client& client, std::uint32_t gpu);
  void read_others();
  bool read_some_others();
  static scheduler::event::Activity activity_of(const Program& program, const Task& task, bool shares);
  scheduler::event::Activity activity_of(const Gang& gang) const;
  void tell_activity(LastActivity& last, const scheduler::event::Activity& activity);
  void note_moves(Client& client);
  template <typename Next>
  std::optional<std::size_t> go_on(const Next& next);
  void schedule_deadline();
  void do_what_is_due();
  void schedule_gang_check();
  void tell_next(scheduler::Time time);
  void stay_awake(scheduler::Time from);
  void housekeeping();
  void look_after_clients();
  void remove_lost();
  void read_pages();
  void keep_place();
  bool idle() const;
  // Exists while programs use GPUs, for a later rotad to find.
  std::string clients_note() const { return options_.socket + ".clients"; }
  void note_clients() const;
  // returning.cpp
  struct Returning;
  std::string books_file() const { return options_.socket + ".books"; }
  void read_books(bool had_programs);
  void add_those_still_away(const Returning& all, Books& books) const;
  std::uint32_t last_grant_of(const Client& client, std::uint32_t gpu) const;
  void tell_returned(Client& client, std::uint32_t gpu);
  void joined_gang(const Program& member, std::uint32_t gpu, scheduler::ClientId gang) override;
  void leave_measured(Books& books) const;
  void on_want_message(Client& client, const protocol::Want& want);
  void take_want(Client& client, const protocol::Want& want, bool held);
  void take_wants_held_back();
  std::size_t came_back() const;
  void look_for_returning();
  // totals.cpp
  static std::string session_name(const Client& client);
  void track(Client& client, std::uint32_t gpu);
  void untrack(Client& client);
  void follow(Client& client);
  void count(Client& client);
  void count_moves(Client& client);
  static bool tells_moves_by_gpu(const Client& client);
  void count_burst(Client& client, const std::optional<protocol::Moves>& moved, bool ended);
  void count_revocation(Client& client, const Task* task);
  void count_refusal(Client& client, std::uint32_t gpu, protocol::RefusalReason reason);
  void add_gauges(const Client& client);
  Result<bool> set_metrics(const MetricsSettings& settings);
  void want_metrics();
  // snapshot.cpp
  struct SnapshotWork;
  void make_snapshot();
  void make_snapshot_for_metrics();
  bool add_to_snapshot(SnapshotWork& work);
  void send_snapshot(Connection& connection, const std::shared_ptr<const SnapshotWork>& snapshot,
                     Budget::Share share) const;
  protocol::GpuRow gpu_row(std::uint32_t index, const GpuEntry& entry) const;
  protocol::ProgramRow program_row(const Client& client) const;
  protocol::TaskRow task_row(const Client& client, std::uint32_t gpu) const;
  protocol::GangRow gang_row(const Gang& gang) const;
  std::optional<protocol::AccountRow> account_row(const scheduler::Quota::Account& account) const;
  protocol::DaemonRow daemon_row() const;

  asio::io_context& io_;
  const Options options_;
  const ModelledTime time_;
  scheduler::Quota limited_{core_.books()};  // changed by apply() alone
  const scheduler::Quota& quota_ = limited_;
  Visibility visibility_;
  std::uint16_t gpus_by_default_;  // that `rota run` chooses
  GpuChoice choices_;
  LimitBook limits_;
  EventLog event_log_;
  MemoryReserve reserve_;
  scheduler::Claims claims_;
  std::deque<scheduler::Claims::Action> due_claims_;
  bool claiming_ = false;
  UserNames user_names_;
  Workers workers_;  // the members below leave sockets to them
  std::map<std::string, Elsewhere> elsewhere_;
  // GPUs that another rotad has given up, and until when programs of its may still come from there.
  std::map<std::string, scheduler::Time> movers_come_until_;
  std::map<std::pair<scheduler::ClientId, std::string>, protocol::AddGpu> named_;  // by clients, and not served yet
  bool letting_go_ = false;
  scheduler::Time machine_checked_at_{};
  bool place_lost_ = false;  // another rotad has this one's socket
  GpuTable gpus_;
  LockFile lock_;
  FileId socket_id_;
  FileId control_id_;
  const bool inherited_;             // one of the two listeners
  const FolderSafety place_safety_;  // as it was at the start
  std::string place_problem_;        // the last that was logged
  asio::posix::stream_descriptor listener_;
  const bool listener_inherited_;
  Control control_;
  asio::steady_timer housekeeping_;
  Alarm deadline_;
  Alarm gang_check_;         // when the next gang has to be checked
  asio::steady_timer wake_;  // to be awake when a holder begins to drain
  std::chrono::steady_clock::time_point awake_until_{};
  std::chrono::nanoseconds longest_{};  // that one handler took of the processor,
  const char* longest_work_ = "";       // and what it did, at least
  asio::steady_timer late_reading_;
  asio::steady_timer forced_reading_;
  asio::steady_timer accept_again_;
  Budget connections_budget_;
  const std::shared_ptr<TimeBudget> time_budget_ = std::make_shared<TimeBudget>();
  asio::steady_timer claims_due_;
  Budget stayers_budget_;
  Budget asks_budget_;
  Budget snapshots_budget_;                      // that are being read, each of which takes memory
  std::shared_ptr<SnapshotWork> snapshot_;       // that is being made
  std::shared_ptr<SnapshotWork> next_snapshot_;  // for those who have asked since that was begun
  std::map<std::uint32_t, std::shared_ptr<Connection>> connections_;
  struct Domain {
    scheduler::DomainId number = 0;
    std::size_t clients = 0;
  };
  std::map<std::string, Domain> domains_;  // of payers that are not users by number
  scheduler::DomainId last_domain_ = 0;
  std::map<scheduler::ClientId, std::unique_ptr<Client>> clients_;
  std::multimap<protocol::ProcessNumber, scheduler::ClientId> announced_;      // of those who have exported memory
  std::set<std::pair<protocol::ProcessNumber, scheduler::ClientId>> openers_;  // who has memory of that one open
  // Clients that have ended, which the core and the limits do not know yet; empty, unless memory ran out.
  std::map<scheduler::ClientId, std::unique_ptr<Client>> gone_;
  std::set<scheduler::ClientId> orphans_;  // clients whose connection closed
  std::shared_ptr<Returning> returning_;   // null: no programs of an earlier rotad are expected, or known
  // The clients that have named a GPU, by process (by domain for processes that rotad cannot see) and GPU.
  std::map<std::tuple<pid_t, std::string, std::uint32_t>, std::set<scheduler::ClientId>> by_process_;
  AssumedContexts assumed_contexts_;  // of users other than root and rotad's own
  struct Session {
    scheduler::SessionId number = 0;
    std::size_t clients = 0;
  };
  std::map<std::string, Session> sessions_;  // of clients that are there, by Quota::Membership::key
  scheduler::SessionId last_session_ = 0;
  std::map<std::uint32_t, std::unique_ptr<Stayer>> stayers_;
  std::set<pid_t> staying_;
  // The masks as they were last published, each with its readers.
  struct Published {
    scheduler::GpuMask clearing = 0;  // to clients that hold them,
    scheduler::GpuMask shared = 0;    // and the rest to clients with tasks there
    scheduler::GpuMask sampling = 0;
    scheduler::GpuMask metered = 0;
    scheduler::GpuMask movable = 0;  // this and `later` to everybody (publish_contexts_to_all)
    scheduler::GpuMask timed = 0;    // to clients with tasks there, too
    scheduler::GpuMask alone = 0;
    scheduler::GpuMask later = 0;
  } published_;
  std::array<scheduler::Bytes, protocol::kMaxGpus> too_much_{};  // as it is published
  scheduler::GpuMask contexts_to_publish_ = 0;
  std::uint32_t next_looked_after_ = 0;  // the client that housekeeping has come to
  const scheduler::Time started_;
  scheduler::Time idle_since_;
  scheduler::Time others_read_at_{};
  std::uint32_t next_other_ = 0;  // the client that the reading of all has come to
  std::uint32_t refusals_logged_ = 0;
  std::map<std::uint32_t, std::uint64_t> handed_over_;  // bytes, by GPU index
  metrics::Book book_;
  MetricsSettings metrics_settings_;
  bool stopped_ = false;
  bool accepting_ = false;  // each is begun again if it was given up for want of memory
  bool keeping_house_ = false;

  // measure.cpp
  std::map<std::uint32_t, GpuReading> readings_;         // by GPU index, of the latest answer
  std::map<std::uint32_t, scheduler::Bytes> uncounted_;  // uncounted_bytes() of it
  // By GPU index: its size, and what is assumed of contexts there, on which the clients' figures are based.
  std::map<std::uint32_t, std::pair<scheduler::Bytes, scheduler::Bytes>> followed_;
  std::array<scheduler::Bytes, protocol::kMaxGpus> followed_outside_{};
  scheduler::Time others_come_back_until_{};          // clients of a rotad before this one
  std::deque<limit::AwaitRoom> rooms_to_await_;       // once the GPU has been read
  scheduler::GpuMask rooms_to_read_ = 0;              // where somebody has begun to wait for memory of others
  std::map<std::uint32_t, scheduler::Time> read_at_;  // by GPU index, while a reading counts
  std::set<std::uint32_t> silent_;                    // GPUs for which it was logged that NVML says nothing
  std::set<pid_t> processes_when_asked_;              // of clients
  std::optional<scheduler::Time> measuring_since_;    // a question is open
  scheduler::Time measure_at_{};                      // when the next is due
  bool measure_again_ = false;                        // as soon as the open one is answered
  scheduler::Time measured_at_{};                     // when the latest answer came,
  scheduler::Time measuring_took_{};                  // and how long after the question
  std::string measuring_problem_;                     // the last that was logged
  bool nvml_released_ = false;                        // for a driver to be unloaded, until it is needed again
  struct Unanswered {
    protocol::Message added;
    scheduler::Time since{};  // a reading that was asked for later answers it
    scheduler::Time until{};
  };
  // Clients that are told about a GPU once they have been measured there. late_ has them in the order of their
  // deadlines.
  std::map<std::pair<scheduler::ClientId, std::uint32_t>, Unanswered> unanswered_;
  struct Late {
    std::pair<scheduler::ClientId, std::uint32_t> of;
    scheduler::Time until;
  };
  std::deque<Late> late_;
  // Work that concerns all clients.
  Paced limits_pass_;
  Paced shares_pass_;
  Paced recipients_pass_;
  Paced contexts_pass_;
  Paced host_pass_;
  Paced rooms_pass_;
  Paced others_pass_;
  Paced activity_pass_;
  // For the machine's rotad: which GPUs there are, once that is known, and when to try again to find them or to take
  // their locks.
  std::vector<Uuid> all_gpus_;
  scheduler::Time all_gpus_at_{};
  // Last: their threads use all of the above.
  Meter meter_;
  Meter all_gpus_meter_;
  std::unique_ptr<MetricsServer> metrics_;  // null: nobody wants any
};

// Raises the limit on open descriptors as far as this process may, and returns it. A client uses two.
std::size_t raise_descriptor_limit();

}  // namespace rota::server
