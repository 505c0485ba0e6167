// The rows of a Snapshot, as rotad sends them one by one (Kind::kStatusGpu and those after it).
#pragma once

#include "scheduler/base/printable.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/protocol/snapshot.h"

namespace rota::protocol {

// Adds a row that came from rotad, which is not trusted: its texts are terminated, and can be shown.
enum class RowAdded {
  kYes,  // or it is a row of a newer rotad
  kLast,
  kNone,  // it is no row: rotad refuses
};
inline RowAdded add_row(Snapshot& all, Message row) {
  const auto add = [](auto& rows, auto& added, auto& text) {
    make_printable(text);
    rows.push_back(added);
    return RowAdded::kYes;
  };
  Message::Body& body = row.body;
  switch (row.kind) {
    case Kind::kStatusGpu:
      return add(all.gpus, body.gpu, body.gpu.name);
    case Kind::kStatusProgram:
      make_printable(body.program.session_name);
      make_printable(body.program.container);
      return add(all.programs, body.program, body.program.name);
    case Kind::kStatusTask:
      if (body.task.mode > static_cast<MemoryMode>(kLastMemoryMode)) body.task.mode = MemoryMode::kUnknown;
      all.tasks.push_back(body.task);
      return RowAdded::kYes;
    case Kind::kStatusGang:
      if (body.gang_row.why > static_cast<GangWhy>(kLastGangWhy)) body.gang_row.why = GangWhy::kNone;
      return add(all.gangs, body.gang_row, body.gang_row.name);
    case Kind::kStatusSession:
      return add(all.sessions, body.session_row, body.session_row.id);
    case Kind::kStatusAccount:
      return add(all.accounts, body.account, body.account.name);
    case Kind::kStatusReservation:
      all.reservations.push_back(body.reservation);
      return RowAdded::kYes;
    case Kind::kStatusDaemon:
      make_printable(body.daemon.rota_version);
      all.daemon = body.daemon;
      return RowAdded::kLast;
    case Kind::kRefused:
      return RowAdded::kNone;
    default:
      return RowAdded::kYes;
  }
}

}  // namespace rota::protocol
