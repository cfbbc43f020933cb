module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <string>
#include <system_error>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.machines;
import :external;
import :start;

namespace tessera::collective {
namespace {

/// Variables that a launcher sets for each process that it starts; null: none.
struct Launcher {
  const char* name;
  const char* rank;
  std::array<const char*, 2> size;      // the first that is set
  const char* local_rank;               // the rank's number on this machine
  const char* local_size;               // how many of the ranks are on this machine
  std::array<const char*, 2> machines;  // how many machines there are; the first that is set
  const char* step;                     // set in ranks only, not in the script around them
};

// Open MPI inside a Slurm job sets its own and has Slurm's: the innermost launcher comes first.
constexpr Launcher launchers[] = {
    {"torchrun",
     "RANK",
     {"WORLD_SIZE", nullptr},
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"GROUP_WORLD_SIZE", nullptr},
     nullptr},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE", nullptr},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {nullptr, nullptr},
     nullptr},
    {"PMI",
     "PMI_RANK",
     {"PMI_SIZE", nullptr},
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {nullptr, nullptr},
     nullptr},
    {"Slurm",
     "SLURM_PROCID",
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     "SLURM_LOCALID",
     nullptr,
     {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"},
     "SLURM_STEP_ID"},
};

constexpr const char* machine_variable = "TESSERA_MACHINE";

std::optional<int> number_from(const char* name) {
  const auto text = name != nullptr ? environment_variable(name) : std::nullopt;
  if (!text) {
    return std::nullopt;
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() || value < 0) {
    fail_input({.thing = name,
                .wrong = "not a number",
                .expected = "0 or more",
                .got = fmt::format("'{}'", *text)});
  }
  return value;
}

std::optional<int> number_from(const std::array<const char*, 2>& names) {
  const auto first = number_from(names[0]);
  return first ? first : number_from(names[1]);
}

/// Whether a Slurm step runs tasks: a batch script and an interactive shell have the numbers of a
/// task too, and no step or one of the highest numbers (SLURM_BATCH_SCRIPT and the like).
bool is_task_step(const char* variable) {
  const auto text = environment_variable(variable);
  constexpr std::uint64_t first_special_step = 0xfffffff0;
  std::uint64_t step = 0;
  return text &&
         std::from_chars(text->data(), text->data() + text->size(), step).ec == std::errc{} &&
         step < first_special_step;
}

/// Name of a job: equal for all its ranks, and different for the jobs and steps of one user at a
/// time.
std::string job_name(const Launcher& launcher) {
  if (const auto job = environment_variable("TESSERA_JOB")) {
    return *job;
  }
  // All of them: a variable that is exported for every job does not tell two of them apart.
  std::vector<std::string> parts;
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR",
                           "MASTER_PORT", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID",
                           "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (const auto value = environment_variable(name)) {
      parts.push_back(*value);
    }
  }
  if (std::string_view(launcher.name) == "PMI") {
    parts.push_back(fmt::format("parent-{}", getppid()));  // Hydra names no job
  }
  if (parts.empty()) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("{} and {} are set, but nothing names the job", launcher.rank,
                                     launcher.size[0]),
                .advice = "set TESSERA_JOB to the same word for all its ranks"});
  }
  return fmt::format("{}", fmt::join(parts, "."));
}

/// Whether the launcher says that the ranks are on several machines; `said` is how.
bool on_several_machines(const Launcher& launcher, int size, std::string& said) {
  const auto local = number_from(launcher.local_size);
  const auto machines = number_from(launcher.machines);
  if (local && *local != size) {
    said = fmt::format("{} is {}, {} is {}", launcher.size[0], size, launcher.local_size, *local);
    return true;
  }
  if (machines && *machines > 1) {
    said = fmt::format("{} started {} on {} machines", launcher.name, count_text(size, "rank"),
                       *machines);
    return true;
  }
  if (const auto name = environment_variable(machine_variable)) {
    said = fmt::format("{} is '{}'", machine_variable, *name);
    return true;
  }
  return false;
}

const Launcher* find_launcher(const MachineOptions& said = {}) {
  if (launcher_place(said)) {
    return nullptr;  // a launcher of our own, which srun or a script has started on each machine
  }
  for (const Launcher& launcher : launchers) {
    if (!environment_variable(launcher.rank)) {
      continue;
    }
    const auto size = number_from(launcher.size);
    if (size && (launcher.step == nullptr || is_task_step(launcher.step))) {
      // One task of one has nobody to join: it may launch ranks itself.
      return *size == 1 ? nullptr : &launcher;
    }
  }
  return nullptr;
}

}  // namespace

bool launched_by_other(const MachineOptions& said) { return find_launcher(said) != nullptr; }

std::optional<LauncherPlace> launcher_place(const MachineOptions& said) {
  const auto number = [](const std::optional<int>& own, const char* variable) {
    return own ? own : number_from(variable);
  };
  const std::optional<int> all = number(said.machines, "TESSERA_MACHINES");
  if (!all && (said.number || said.meet || said.ranks)) {
    fail_input({.thing = "--machines",
                .wrong = "is missing",
                .advice = "say how many machines there are, or leave out --machine, --meet and "
                          "--here"});
  }
  const int machines = all.value_or(1);
  if (machines < 2) {
    return std::nullopt;
  }
  const std::optional<int> machine = number(said.number, "TESSERA_MACHINE_NUMBER");
  const std::optional<std::string> meet =
      said.meet ? said.meet : environment_variable("TESSERA_MEET");
  if (!machine || *machine >= machines) {
    fail_input({.thing = "--machine",
                .wrong = fmt::format("each of {} machines needs a number of its own", machines),
                .expected = fmt::format("0 to {}", machines - 1),
                .got = machine ? fmt::format("{}", *machine) : "none",
                .advice = "give it in --machine, or in TESSERA_MACHINE_NUMBER"});
  }
  if (!meet) {
    fail_input({.thing = "--meet",
                .wrong = "the machines have no address at which they meet",
                .advice = "give HOST:PORT, with the host of machine 0 and a free port of it, in "
                          "--meet or in TESSERA_MEET"});
  }
  parse_endpoint("--meet", *meet);
  return LauncherPlace{*machine, machines, *meet,
                       number(said.ranks, "TESSERA_RANKS_HERE").value_or(0)};
}

int ranks_started_here(int ranks, const MachineOptions& said) {
  if (launched_by_other(said)) {
    return 1;
  }
  const std::optional<LauncherPlace> place = launcher_place(said);
  return place ? place->ranks_of(ranks) : ranks;
}

bool is_first_process(const MachineOptions& said) {
  if (const std::optional<LauncherPlace> place = launcher_place(said)) {
    return place->machine == 0;
  }
  const Launcher* launcher = find_launcher(said);
  return launcher == nullptr || number_from(launcher->rank) == 0;
}

std::string machine_name() {
  if (const auto name = environment_variable(machine_variable)) {
    return *name;
  }
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

ExternalRank external_rank(int expected_ranks, std::string_view transport) {
  const Launcher* launcher = find_launcher();
  require(launcher != nullptr, "join_launch: no other launcher started this process as a rank");
  const int rank = number_from(launcher->rank).value_or(0);
  const int size = number_from(launcher->size).value_or(0);
  if (rank >= size) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("bad {} and {}", launcher->rank, launcher->size[0]),
                .expected = fmt::format("{} < {}", launcher->rank, launcher->size[0]),
                .got = fmt::format("{} and {}", rank, size)});
  }
  if (expected_ranks != 0 && expected_ranks != size) {
    fail_input(
        {.thing = "launch",
         .wrong = fmt::format("the run has {}, but {} is {}", count_text(expected_ranks, "rank"),
                              launcher->size[0], size),
         .advice = fmt::format("start {} or change the mesh", count_text(expected_ranks, "rank"))});
  }
  std::string said;
  const bool several = on_several_machines(*launcher, size, said);
  if (several && transport == "shm") {
    fail_input({.thing = "launch",
                .wrong = fmt::format(
                    "all ranks must be on one machine with the transport 'shm' ({})", said),
                .advice = "set `mesh.transport` to \"auto\", or start all ranks on one machine"});
  }
  return {rank, size, job_name(*launcher), several || (transport != "auto" && transport != "shm")};
}

std::optional<ExternalRank> reachable_rank(const MachineOptions& said) {
  try {
    const Launcher* launcher = find_launcher(said);
    const int size = launcher == nullptr ? 0 : number_from(launcher->size).value_or(0);
    return size == 0 ? std::nullopt : std::make_optional(external_rank(size, "auto"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool speaks_for_machine(const MachineOptions& said) {
  try {
    const Launcher* launcher = find_launcher(said);
    if (launcher == nullptr) {
      return true;
    }
    const std::optional<int> rank = number_from(launcher->rank);
    const std::optional<int> size = number_from(launcher->size);
    if (!rank || !size || *rank < 0 || *rank >= *size) {
      return true;  // no other rank has the same fault
    }
    return rank == 0 || number_from(launcher->local_rank) == 0;
  } catch (const Error&) {
    return true;  // the variables themselves are wrong
  }
}

}  // namespace tessera::collective
