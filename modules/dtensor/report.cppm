module;
#include <cstdint>
#include <string>
#include <vector>
export module tessera.dtensor:report;

import tessera.mesh;
import tessera.placement;

export namespace tessera {

/// One collective that this rank took part in.
struct Communication {
  std::string operation;   // "all_gather", "reduce_scatter"...
  std::string axis;        // of the mesh
  std::int64_t bytes = 0;  // that this rank received
  std::string where;       // the operator or style that asked
  bool implicit = false;   // inside an allow_redistribution scope
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
  /// A line for each operation, axis and place: how often, how many bytes.
  std::string to_string() const;

 private:
  friend void record_communication(Communication);
  std::vector<Communication> entries_;
  CommunicationReport* outer_;
};

/// For redistribution and styles that call communicators themselves. Costs a load when no report is
/// open.
void record_communication(Communication entry);
bool communication_reported();

/// Operators may redistribute their operands by themselves within the scope (counted, and listed by
/// reports).
class AllowRedistribution {
 public:
  AllowRedistribution();
  ~AllowRedistribution();
  AllowRedistribution(const AllowRedistribution&) = delete;
  AllowRedistribution& operator=(const AllowRedistribution&) = delete;

 private:
  bool before_;
};
bool redistribution_allowed();

}  // namespace tessera
