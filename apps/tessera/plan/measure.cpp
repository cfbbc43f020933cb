module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.train;
import tessera.runs;
import tessera.app.base;
import tessera.app.run;

namespace tessera::app {
namespace {

constexpr int rounds = 5;

/// A tensor with values that no kernel is slower for: numbers near 0 that are none of the least.
Tensor some_values(const ResultShape& x, Device device) {
  return full(x.shape, is_floating(x.dtype) ? 0.01 : 0, x.dtype, device);
}

/// Ids of rows, over all of a table.
Tensor spread_ids(const ResultShape& x, std::int64_t rows, Device device) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(x.shape.product()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i) * 7919 % rows;
  }
  const Tensor there = from_values(std::span<const std::int64_t>(ids), x.shape);
  return ops::to_device(ops::cast(there, x.dtype), device);
}

bool needs_others(const Instruction& i) {
  return i.op != nullptr && (i.op->communicates != Communicates::none || i.op->completes);
}
bool is_kernel(const Instruction& i) {
  return i.kind == Instruction::Kind::call || i.kind == Instruction::Kind::full;
}

/// Of the tensors that an instruction reads or writes.
std::int64_t most_elements(const Instruction& i, const graph::Shadow& shadow) {
  std::int64_t most = 0;
  for (const auto* const tensors : {&i.in, &i.out}) {
    for (const Tensor& x : shadow.at(*tensors)) {
      most = std::max(most, x ? x.numel() : 0);
    }
  }
  return most;
}

/// What a kernel does: instructions of the same kind take the same time. Empty: no kernel.
ByPlace<std::string> kinds_of(const Program& program) {
  const graph::Shadow shadow = graph::shadow_of(program);
  ByPlace<std::string> kinds;
  for (const Instruction* i : graph::places_of(program)) {
    std::string kind;
    if (is_kernel(*i) && !needs_others(*i)) {
      kind = i->kind == Instruction::Kind::call ? graph::call_in_words(*i) : "full";
      for (const auto* const tensors : {&i->in, &i->out}) {
        for (const Tensor& x : shadow.at(*tensors)) {
          kind += x ? fmt::format(" {}{}{}", name_of(x.dtype()), to_string(x.shape()),
                                  to_string(x.strides()))
                    : " -";
        }
      }
    }
    kinds.add(std::move(kind));
  }
  return kinds;
}

/// Executes a program's instructions but for those that need other ranks.
class LocalReplay {
 public:
  using Time = std::function<double(PlaceIndex place, const std::function<void()>& call)>;

  /// `timed`: the kernels whose time is wanted. `time`: of a call, which it makes.
  LocalReplay(const Program& program, const ByPlace<bool>& timed, Time time, Device device = cpu)
      : program_(program),
        timed_(timed),
        time_(std::move(time)),
        device_(device),
        places_(graph::places_of(program)),
        tensors_(program.tensors.size()),
        last_(places_.size()) {
    const graph::Shadow shadow = graph::shadow_of(program);
    for (const TensorIndex x : program.tensors.keys()) {
      const MemoryIndex memory = shadow.memory(x);
      if (!memory.exists()) {
        continue;
      }
      const graph::Memory& of = shadow.memories[memory];
      if (!of.is_input && of.last < shadow.end()) {
        last_[of.last].push_back(x);
      }
    }
    std::map<MemoryIndex, std::int64_t> rows;
    for (const Instruction* i : places_) {
      if (i->op != nullptr && i->op->name == "embedding" && shadow.memory(i->in[1]).exists()) {
        rows[shadow.memory(i->in[1])] = program.tensors[i->in[0]].shape[0];
      }
    }
    for (const TensorIndex x : program.tensors.keys()) {
      const auto found = rows.find(shadow.memory(x));
      if (found != rows.end()) {
        ids_.emplace(x, found->second);
      }
    }
  }

  /// Adds the seconds of each kernel that is timed. Of others, the results are made, as they are
  /// without values.
  void run(ByPlace<std::vector<double>>& seconds_of_kernel) {
    for (const auto& [name, input] : program_.inputs) {
      if (!tensors_[input.tensor]) {
        tensors_[input.tensor] = made(input.tensor);
      }
    }
    for (const PlaceIndex place : places_.keys()) {
      const Instruction& i = *places_[place];
      if (needs_others(i) ||
          (is_kernel(i) && i.op != nullptr && i.op->view == nullptr && !timed_[place])) {
        make_results(i);
      } else if (i.kind != Instruction::Kind::check) {
        const auto call = [&] { execute(program_, i, i.attributes, tensors_, device_); };
        if (timed_[place]) {
          seconds_of_kernel[place].push_back(time_(place, call));
        } else {
          call();
        }
      }
      for (const TensorIndex done : last_[place]) {
        tensors_[done] = Tensor();
      }
    }
  }

 private:
  Tensor made(TensorIndex number) const {
    const auto ids = ids_.find(number);
    const ProgramTensor& x = program_.tensors[number];
    return ids == ids_.end() ? some_values(x, device_) : spread_ids(x, ids->second, device_);
  }
  void make_results(const Instruction& i) {
    for (const TensorIndex number : i.out) {
      if (number.exists()) {
        tensors_[number] = made(number);
      }
    }
  }

  const Program& program_;
  const ByPlace<bool>& timed_;
  const Time time_;
  const Device device_;
  std::map<TensorIndex, std::int64_t> ids_;  // rows of the table that they are ids of
  ByPlace<const Instruction*> places_;
  ByTensor<Tensor> tensors_;
  ByPlace<std::vector<TensorIndex>> last_;
};

/// Bytes a second of a kernel that reads and writes adjacent memory.
double measure_bandwidth() {
  constexpr std::int64_t elements = std::int64_t{1} << 22;
  const Tensor from = full({elements}, 1, DType::f32, cpu);
  const Tensor to = full({elements}, 0, DType::f32, cpu);
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    best = std::min(best, runs::seconds_of([&] { ops::copy_(to, from); }));
  }
  return 2.0 * 4 * static_cast<double>(elements) / best;
}

/// Of the gathers and sums of a group, from memory of the kind that a run's operands have.
HardwareLink measure_link(collective::Communicator& group) {
  if (group.size() < 2) {
    return {.latency = 1e-6, .bandwidth = 1e10};  // nothing is sent
  }
  const std::vector<collective::CollectiveRate> rates =
      collective::measure_collectives(group, {std::size_t{4} << 10, std::size_t{4} << 20});
  double least = std::numeric_limits<double>::infinity();
  const auto rate_of = [&](const std::string& name, double share_from_others) {
    double received = 0;
    double seconds = 0;
    for (const collective::CollectiveRate& rate : rates) {
      if (rate.name != name) {
        continue;
      }
      least = std::min(least, rate.seconds);
      if (rate.received_bytes > received) {
        received = rate.received_bytes * share_from_others;
        seconds = rate.seconds;
      }
    }
    return received / std::max(1e-9, seconds - least);
  };
  const auto ranks = static_cast<double>(group.size());
  // A gather copies a rank's own part as well.
  const double gathers = rate_of("all_gather (private)", (ranks - 1) / ranks);
  const double sums = rate_of("reduce_scatter", 1);
  return {.latency = least, .bandwidth = gathers, .sums = sums};
}

/// Numbers of rank 0 of some ranks that run at the same time.
std::vector<double> numbers_of_ranks(
    int ranks, int threads, const std::function<std::vector<double>(collective::World&)>& run) {
  const std::string bytes =
      text_of_ranks({.ranks = ranks, .rank_threads = threads}, [&](collective::World& world) {
        ops::set_threads(threads);
        const std::vector<double> numbers = run(world);
        return std::string(reinterpret_cast<const char*>(numbers.data()),
                           numbers.size() * sizeof(double));
      });
  std::vector<double> numbers(bytes.size() / sizeof(double));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
  return numbers;
}

/// Ranks that this machine can run at the same time.
int ranks_at_once(int ranks, int threads) {
  return std::clamp(available_cores() / std::max(threads, 1), 1, ranks);
}

}  // namespace

Hardware measure_hardware(int ranks, int threads) {
  const int at_once = ranks_at_once(ranks, threads);
  const std::vector<double> numbers =
      numbers_of_ranks(at_once, threads, [&](collective::World& world) -> std::vector<double> {
        const HardwareLink link = measure_link(world.everyone());
        world.everyone().barrier();
        double products = 0;
        for (int round = 0; round < rounds; ++round) {
          products = std::max(products, ops::measure_gemm(0.1));
        }
        world.everyone().barrier();
        return {products, measure_bandwidth(), link.latency, link.bandwidth, link.sums};
      });
  require(numbers.size() == 5, "plan: a rank that measures has written something else");
  const HardwareLink link{.latency = numbers[2], .bandwidth = numbers[3], .sums = numbers[4]};
  const Machine machine = look_at_machine();
  return {.name = machine.cpu,
          .source = fmt::format("measured here, {} of {} at the same time",
                                count_text(at_once, "rank"), count_text(threads, "thread")),
          .ranks = at_once,
          .memory = static_cast<double>(machine.memory) / at_once,
          .overlaps = false,
          .rates = {.products_of_words = numbers[0],
                    .products = numbers[0],
                    .products_of_bytes = numbers[0],
                    .attention = numbers[0],
                    .bandwidth = numbers[1],
                    .launch = 1e-6},
          .inside = link,
          .between = link};
}

MeasuredKernels::MeasuredKernels(int ranks, int threads)
    : ranks_(ranks_at_once(ranks, threads)), threads_(threads) {}

ByPlace<double> MeasuredKernels::seconds_of(const Program& program) {
  const ByPlace<std::string> kinds = kinds_of(program);
  ByPlace<bool> wanted(kinds.size());
  bool any = false;
  for (const PlaceIndex place : kinds.keys()) {
    wanted[place] = !kinds[place].empty() && kinds_[kinds[place]].round < round_;
    any = any || wanted[place];
  }
  if (any) {
    measure(program, kinds, wanted);
  }
  ByPlace<double> seconds(kinds.size());
  for (const PlaceIndex place : kinds.keys()) {
    seconds[place] = kinds[place].empty() ? 0 : kinds_.at(kinds[place]).seconds;
  }
  return seconds;
}

void MeasuredKernels::measure(const Program& program, const ByPlace<std::string>& kinds,
                              const ByPlace<bool>& wanted) {
  const std::vector<double> medians =
      numbers_of_ranks(ranks_, threads_, [&](collective::World& world) {
        // Layouts of a stage know its own ranks only.
        const auto as_own = [&](const std::function<void()>& body) {
          if (world.rank() == program.rank) {
            body();
          } else {
            as_rank(program.rank, [&] {
              ops::set_threads(threads_);
              body();
            });
          }
        };
        std::optional<LocalReplay> alone;
        const auto time = [](PlaceIndex, const std::function<void()>& call) {
          return runs::seconds_of(call);
        };
        as_own([&] { alone.emplace(program, wanted, time); });
        ByPlace<std::vector<double>> seconds(kinds.size());
        for (int round = 0; round < rounds; ++round) {
          world.everyone().barrier();
          as_own([&] { alone->run(seconds); });
        }
        std::vector<double> of_places;
        for (const std::vector<double>& all : seconds) {
          of_places.push_back(all.empty() ? 0 : runs::median(all));
        }
        return of_places;
      });
  require(medians.size() == kinds.size(), "plan: a rank that measures has written something else");
  std::map<std::string, std::pair<double, int>> sums;
  for (const PlaceIndex place : kinds.keys()) {
    if (wanted[place]) {
      auto& [sum, count] = sums[kinds[place]];
      sum += medians[static_cast<std::size_t>(place.number)];
      ++count;
    }
  }
  for (const auto& [kind, of_kind] : sums) {
    Measurement& measured = kinds_[kind];
    measured.seconds = std::min(measured.seconds, of_kind.first / of_kind.second);
    measured.round = round_;
  }
}

ByPlace<double> kernel_seconds_on(Device device, const Program& program) {
  constexpr int most = 3;
  const NoGrad constant;
  const graph::Shadow shadow = graph::shadow_of(program);
  const auto places = graph::places_of(program);
  const ByPlace<std::string> kinds = kinds_of(program);
  std::map<std::string, int> counts;
  ByPlace<bool> timed(kinds.size());
  for (const PlaceIndex place : kinds.keys()) {
    timed[place] = !kinds[place].empty() && ++counts[kinds[place]] <= most;
  }
  ByPlace<std::vector<double>> found(kinds.size());
  const auto costs = kernel_costs(program, {});
  const auto time = [&](PlaceIndex place, const std::function<void()>& call) {
    const std::optional<KernelCost>& cost = costs[place];
    log(LogLevel::debug,
        fmt::format("measures {}: {} elements, {:.0f} bytes", kernel_name(*places[place]),
                    most_elements(*places[place], shadow), cost ? cost->bytes : 0));
    call();  // loads its code, chooses its algorithm
    synchronize(device);
    return runs::seconds_of([&] {
             for (int round = 0; round < rounds; ++round) {
               call();
             }
             synchronize(device);
           }) /
           rounds;
  };
  const auto run = [&] { LocalReplay(program, timed, time, device).run(found); };
  program.rank == 0 ? run() : as_rank(program.rank, run);
  std::map<std::string, double> of_kind;
  for (const PlaceIndex place : kinds.keys()) {
    for (const double seconds : found[place]) {
      of_kind[kinds[place]] += seconds / std::min(most, counts[kinds[place]]);
    }
  }
  ByPlace<double> seconds(kinds.size());
  for (const PlaceIndex place : kinds.keys()) {
    seconds[place] = kinds[place].empty() ? 0 : of_kind[kinds[place]];
  }
  return seconds;
}

}  // namespace tessera::app
