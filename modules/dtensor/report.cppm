export module tessera.dtensor:report;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

export namespace tessera {

/// One collective that this rank took part in.
struct Communication {
  std::string operation;   // "all_gather", "reduce_scatter"...
  std::string axis;        // of the mesh; if a collective spans several axes, joined by '+'
  std::int64_t bytes = 0;  // that this rank received
  std::string where;       // the operator or style that requested it
  bool implicit = false;   // inside an AllowRedistribution scope
  double seconds = 0;      // that this rank spent in it, including waiting for others
  // Filled by record_communication.
  std::string module = {};  // qualified name of the running module; empty outside of modules
  bool backward = false;
};

/// Records the communication of the calling rank within the scope. Scopes nest; only the innermost
/// scope records.
class CommunicationReport {
 public:
  CommunicationReport();
  ~CommunicationReport();
  CommunicationReport(const CommunicationReport&) = delete;
  CommunicationReport& operator=(const CommunicationReport&) = delete;

  const std::vector<Communication>& entries() const { return entries_; }
  std::int64_t count(const std::string& operation) const;
  std::int64_t bytes() const;
  double seconds() const;
  /// One line per operation, axis, operator, module and phase: count, bytes and time.
  std::string to_string() const;
  /// An array with an object for each collective in order: operation, axis, bytes, where, implicit,
  /// module, phase ("forward", "backward"), seconds.
  std::string to_json() const;

 private:
  friend void record_communication(Communication);
  std::vector<Communication> entries_;
  CommunicationReport* outer_;
};

/// For redistribution and for styles that call communicators: adds the collective to the open
/// report and, if it is implicit, to the open AllowRedistribution scope. Costs one load if none is
/// open.
void record_communication(Communication entry);
/// Whether a report or an AllowRedistribution scope is open.
bool communication_reported();

/// Measures a collective: construct it before, call seconds() after. Reads the clock only if a
/// report is open.
class CommunicationTimer {
 public:
  CommunicationTimer();
  /// Time since the construction; 0 if no report was open then.
  double seconds() const;

 private:
  std::chrono::steady_clock::time_point begin_;
};

/// Within the scope, operators may redistribute their operands implicitly; operators without a
/// placement rule gather them; so may the backward of these calls, also when the scope has ended.
/// The scope and the open report list this communication. Scopes nest; only the innermost scope
/// records.
class AllowRedistribution {
 public:
  AllowRedistribution();
  ~AllowRedistribution();
  AllowRedistribution(const AllowRedistribution&) = delete;
  AllowRedistribution& operator=(const AllowRedistribution&) = delete;

  /// The implicit collectives, and their number.
  std::int64_t count() const { return static_cast<std::int64_t>(entries_.size()); }
  const std::vector<Communication>& entries() const { return entries_; }

 private:
  friend void record_communication(Communication);
  std::vector<Communication> entries_;
  AllowRedistribution* outer_;
  PermissionScope permission_;
};
/// Whether calls of this thread may redistribute their operands now.
bool redistribution_allowed();

/// Operators take plain and distributed operands together where the meaning is certain: a plain
/// tensor without dims is a number that every rank has, so it is Replicate on the mesh of the other
/// operands. Within the scope, every plain operand is: a mask, a table, a constant. The caller
/// promises that its elements are equal on all ranks; nothing checks it. The promise holds for the
/// backward of these calls too. In both cases it is an error if the operand requires a gradient
/// (which only the caller could place: distribute() it) or is written.
class PlainIsReplicate {
 public:
  PlainIsReplicate();
  ~PlainIsReplicate();
  PlainIsReplicate(const PlainIsReplicate&) = delete;
  PlainIsReplicate& operator=(const PlainIsReplicate&) = delete;

 private:
  PermissionScope permission_;
};
bool plain_is_replicate();

}  // namespace tessera
