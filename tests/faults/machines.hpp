// Runs of several launchers, on machines that this one plays.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "layouts.hpp"
#include "link.hpp"
#include "program.hpp"

namespace faults {

/// The words that make a launcher one of several.
Words on_machine(std::size_t number, std::size_t machines, int port);

/// A launcher for each machine.
class Machines {
 public:
  /// No launcher yet. `link`: between two machines; null: all have this one's network.
  explicit Machines(const Link* link = nullptr);
  /// Of each machine, the words of its command besides those of its place.
  Machines(const RunFolder& folder, const std::vector<Words>& commands, const Link* link = nullptr);
  /// `wait`: seconds in which the others must come.
  void start(const RunFolder& folder, const Words& command, std::size_t number,
             std::size_t machines, const std::string& wait = "60");
  /// Kills a launcher, and its ranks with it, as a machine that is lost.
  void lose(std::size_t number) const;
  /// The same command again, in the place of one that is lost.
  void replace(const RunFolder& folder, const Words& command, std::size_t number);
  /// A spare machine of the run.
  std::unique_ptr<Program> spare(const RunFolder& folder, const Words& command,
                                 std::size_t machines) const;
  /// From now on, the launcher of this number is one that was a spare machine.
  void replace(std::size_t number, std::unique_ptr<Program> spare);
  Program& operator[](std::size_t m) { return *programs_[m]; }
  int port() const { return port_; }
  /// How each has ended. Nothing of them is left.
  std::vector<Result> wait(double limit = 40);

 private:
  std::unique_ptr<Program> program(const RunFolder& folder, const Words& command,
                                   std::size_t number, std::size_t machines,
                                   const std::string& wait) const;

  int port_;
  const Link* link_;
  std::vector<std::unique_ptr<Program>> programs_;
};

Kind steps(Kind kind, std::int64_t steps);
/// FSDP over so many machines with a rank each.
Kind of_machines(int machines);
/// Whether the run has taken so many steps, within 20 s.
bool trains(const RunFolder& folder, std::size_t steps = 3);
/// Whether the launchers with these numbers have started their ranks again so often, within 20 s.
bool heal(Machines& machines, const std::vector<std::size_t>& numbers, int times);
/// Each launcher ends with this code and says the text once.
void all_say(const std::vector<Result>& results, int code, const std::string& text);
/// All end without an error, as the undisturbed run.
void all_end_as(const RunFolder& folder, Machines& machines, const Ending& expected);

}  // namespace faults
