export module tessera.app.plan:hardware;

import tessera.base;
import tessera.app.base;

// Rates of ranks and of the links between them, which a plan is made for.

export namespace tessera::app {

/// What is between two ranks.
struct HardwareLink {
  double latency = 0;    // seconds of a step of a collective
  double bandwidth = 0;  // bytes that arrive at a rank in a second
  double sums = 0;       // bytes that a rank receives and adds up in a second; 0: as bandwidth
};

/// How often ranks fail, and what a checkpoint takes.
struct HardwareFailures {
  double per_rank_year = 0;  // failures; 0: not known
  double write = 0;          // bytes that a rank writes to storage in a second; 0: not known
  double read = 0;           // likewise
  double restart = 0;        // seconds from a failure until ranks load their checkpoint
};

/// What runs a step: ranks of one kind, some of them on each machine.
struct Hardware {
  std::string name = {};
  std::string source = {};  // where the rates are from
  int ranks = 1;            // of a machine
  double memory = 0;        // bytes of a rank; 0: not known
  double price = 0;         // of a rank's hour; 0: not known
  /// Whether a rank computes while its collectives move: a GPU does. Ranks that copy from shared
  /// memory do not.
  bool overlaps = true;
  DeviceRates rates = {};
  HardwareLink inside = {};   // a machine
  HardwareLink between = {};  // machines
  HardwareFailures failures = {};
};

/// Seconds in which a rank copies so many bytes into other memory of its machine.
double copy_seconds(const Hardware& hardware, double bytes);

/// Reads a TOML file (docs/planning.md has its keys). Errors (input): the file cannot be read; a
/// key is unknown, missing, or has another type or range; the text has file and line.
Hardware read_hardware(const std::string& file);

/// The text of such a file.
std::string hardware_text(const Hardware& hardware);

}  // namespace tessera::app
