export module tessera.dtensor:report;

import tessera.base;
import tessera.mesh;
import tessera.placement;

export namespace tessera {

/// One collective that this rank took part in.
struct Communication {
  std::string operation;   // "all_gather", "reduce_scatter"...
  std::string axis;        // of the mesh; several that one collective spans are joined by '+'
  std::int64_t bytes = 0;  // that this rank received
  std::string where;       // the operator or style that asked
  bool implicit = false;   // inside an AllowRedistribution scope
  double seconds = 0;      // that this rank spent in it, waiting for others included
  // Filled by record_communication.
  std::string module = {};  // qualified name of the module that ran; empty outside of all modules
  bool backward = false;
};

/// Collects what the calling rank communicates within the scope. Scopes nest; the inner one takes
/// all.
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
  /// A line for each operation, axis, place, module and direction: how often, how many bytes, how
  /// long.
  std::string to_string() const;
  /// An array with an object for each collective in order: operation, axis, bytes, where, implicit,
  /// module, phase ("forward", "backward"), seconds.
  std::string to_json() const;

 private:
  friend void record_communication(Communication);
  std::vector<Communication> entries_;
  CommunicationReport* outer_;
};

/// For redistribution and styles that call communicators themselves: lists the collective in the
/// open report and, when it is implicit, in the open AllowRedistribution scope. Costs a load when
/// none is open.
void record_communication(Communication entry);
/// Whether anybody listens to record_communication.
bool communication_reported();

/// How long a collective takes: begin it before, ask behind. Reads no clock when nobody listens.
class CommunicationTimer {
 public:
  CommunicationTimer();
  /// Since the construction; 0 when nobody listened then.
  double seconds() const;

 private:
  std::chrono::steady_clock::time_point begin_;
};

/// Operators may redistribute their operands by themselves within the scope, and those without a
/// placement rule gather theirs. What they communicate is counted and listed here, and in the open
/// report. Scopes nest; the inner one counts.
class AllowRedistribution {
 public:
  AllowRedistribution();
  ~AllowRedistribution();
  AllowRedistribution(const AllowRedistribution&) = delete;
  AllowRedistribution& operator=(const AllowRedistribution&) = delete;

  /// How many collectives were taken by operators themselves, and which.
  std::int64_t count() const { return static_cast<std::int64_t>(entries_.size()); }
  const std::vector<Communication>& entries() const { return entries_; }

 private:
  friend void record_communication(Communication);
  std::vector<Communication> entries_;
  AllowRedistribution* outer_;
};
bool redistribution_allowed();

}  // namespace tessera
