module;
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.stores;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.checkpoint;
import tessera.train;
import :repeated_spec;
import :stored_inputs;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The folder of checkpoints that is meant: it, or the only one in it that has some.
std::string checkpoints_meant(const std::string& folder) {
  if (stores::is_address(folder)) {
    return folder;
  }
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    fail_input({.thing = shown(folder),
                .wrong = "there is no such folder",
                .expected = "the folder of a run, of its checkpoints, or of an export"});
  }
  if (!checkpoints_in(folder).empty() ||
      fs::exists(fs::path(folder) / "checkpoint.json", ignored)) {
    return folder;
  }
  std::vector<std::string> found;
  constexpr int most_entries = 10'000;
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (++entries > most_entries) {
      break;
    }
    if (entry.is_directory(ignored) && !checkpoints_in(entry.path().string()).empty()) {
      found.push_back(entry.path().string());
    }
  }
  std::ranges::sort(found);
  if (found.size() != 1) {
    fail_input({.thing = shown(folder),
                .wrong = found.empty() ? "there is neither a checkpoint nor record.json in it"
                                       : fmt::format("several runs have checkpoints in it: {}",
                                                     join_words(found)),
                .expected = "the folder of a run, of its checkpoints, or of an export",
                .advice = found.empty() ? "a run saves checkpoints with checkpoint.folder"
                                        : "name one of them"});
  }
  return found.front();
}

/// The description of a session, whose "~/..." are paths of whoever reads it.
std::string own_config(const Session& session) {
  Json config = parse_ordered_json(session.config.text);
  const auto place = [](auto&& self, Json& value) -> void {
    if (value.is_string()) {
      value = own_path(value.get<std::string>());
    } else if (value.is_structured()) {
      for (Json& one : value) {
        self(self, one);
      }
    }
  };
  place(place, config);
  return json_text(config);
}

/// The description of a session, as a run that writes nothing.
RunSpec spec_of(const Session& session, const std::string& where, const std::string& folder) {
  RunSpec spec = with_copies(spec_of_json(own_config(session), where, folder));
  remove_outputs(spec);
  return spec;
}

Fingerprint fingerprint_of(const Session& session) {
  Fingerprint values;
  const Json all = parse_ordered_json(session.fingerprint.text);
  for (const auto& [name, value] : all.items()) {
    values[name] = json_text(value);
  }
  return values;
}

void use_recorded_plugins(const Session& session, const std::string& folder,
                          const std::vector<std::string>& plugins) {
  RunSpec loads;  // a family of models may be in one of them
  loads.plugins.paths = recorded_plugins(own_config(session), folder);
  use_plugins(loads, plugins);
}

/// What differs between the machine and programs of a session and these.
void note_differences(const Session& session, const Session& own, std::vector<std::string>& notes) {
  const auto add = [&](const char* what, const std::string& then, const std::string& now) {
    const std::string note =
        fmt::format("the {} was {}, and is {} here", what, shown(then), shown(now));
    if (then != now && std::ranges::find(notes, note) == notes.end()) {
      notes.push_back(note);
    }
  };
  add("version of Tessera", session.version, own.version);
  add("program's hash", session.program, own.program);
  add("processor", session.processor, own.processor);
  add("system", session.system, own.system);
}

void plan_checkpoints(const VerifyRequest& request, VerifyPlan& plan) {
  const std::string folder = checkpoints_meant(request.folder);
  plan.run = open_recorded(folder, request.plugins);
  const std::string& newest = plan.run.saved.back().path;
  const CheckpointReader reader(newest, OpenFiles::when_read);
  ReadRecord read = stored_record(reader);
  if (!read.problem.empty()) {
    fail_input({.thing = shown(newest),
                .wrong = fmt::format("its record of the run: {}", read.problem),
                .advice = "'tessera replay' computes single steps of a run without a record"});
  }
  plan.record = std::move(read.record);
  plan.numbers.push_back({.where = "the record of " + newest, .points = plan.record.curve});
  std::error_code ignored;
  if (!plan.run.metrics.empty() && fs::is_regular_file(plan.run.metrics, ignored)) {
    RecordedNumbers file{.where = plan.run.metrics};
    for (const StepMetrics& one : read_metrics(plan.run.metrics)) {
      file.points.push_back({.step = one.step,
                             .loss = one.loss,
                             .grad_norm = one.grad_norm,
                             .lr = one.lr,
                             .validation_loss = one.validation_loss});
    }
    plan.numbers.push_back(std::move(file));
  }
}

void plan_export(const VerifyRequest& request, VerifyPlan& plan) {
  plan.exported = read_export_record(request.folder);
  plan.record = plan.exported->record;
  plan.run.folder = request.folder;
  plan.run.excluded = exclusions_of(plan.exported->excluded, request.folder);
  Json files = Json::array();
  for (const RecordedFile& file : plan.exported->data) {
    files.push_back({{"path", (fs::path(request.seen_from) / own_path(file.name)).string()},
                     {"bytes", file.bytes}});
  }
  plan.run.files = json_text(files);
  plan.numbers.push_back({.where = record_file, .points = plan.record.curve});
}

/// The numbers of an earlier checkpoint's record; what is wrong with it is told when it is
/// compared.
void add_record(const std::string& path, VerifyPlan& plan) {
  try {
    const CheckpointReader reader(path, OpenFiles::when_read);
    if (ReadRecord read = stored_record(reader); read.problem.empty()) {
      plan.numbers.push_back(
          {.where = "the record of " + path, .points = std::move(read.record.curve)});
    }
  } catch (const Error&) {
    return;
  }
}

/// The newest checkpoint that has at most so many steps; null: none.
const RecordedRun::Checkpoint* newest_until(const RecordedRun& run, std::int64_t steps) {
  const RecordedRun::Checkpoint* found = nullptr;
  for (const RecordedRun::Checkpoint& one : run.saved) {
    found = one.step <= steps ? &one : found;
  }
  return found;
}

/// The working directory of the run where it is still there; else this one.
std::string paths_from(const VerifyRequest& request, const VerifyPlan& plan) {
  std::error_code ignored;
  std::string from = request.seen_from;
  if (from.empty() && !plan.exported) {
    const CheckpointReader reader(plan.run.saved.back().path, OpenFiles::when_read);
    const nlohmann::json meta = parse_json(reader.meta(), false);
    from = meta.value(nlohmann::json::json_pointer("/started/folder"), std::string());
  }
  return fs::is_directory(from, ignored) ? from : fs::current_path(ignored).string();
}

void plan_segments(const VerifyRequest& request, VerifyPlan& plan) {
  const std::string from = paths_from(request, plan);
  std::int64_t done = plan.first - 1;
  const RecordedRun::Checkpoint* begin = newest_until(plan.run, done);
  done = begin == nullptr ? 0 : begin->step;
  for (const Session& session : plan.record.sessions) {
    const std::int64_t to = std::min(session.to, plan.last);
    if (to <= done) {
      continue;
    }
    if (session.from > done) {
      fail_input({.thing = shown(request.folder),
                  .wrong = fmt::format("the record does not say how steps {} to {} were taken",
                                       done + 1, session.from),
                  .expected = "steps that its sessions have taken",
                  .advice = "name later ones by --steps"});
    }
    VerifySegment segment{
        .from = done,
        .checkpoint = begin == nullptr || !plan.segments.empty() ? "" : begin->path,
        .to = to,
        .spec = spec_of(session, plan.run.folder, from),
        .fingerprint = fingerprint_of(session),
        .mesh = session.mesh};
    if (request.layout) {
      if (!segment.spec.train.is_layout_free()) {
        fail_input({.thing = "--layout",
                    .wrong = fmt::format("the run's bits are promised on its own mesh only, {}",
                                         shown(segment.mesh)),
                    .expected = "a run with train.reproducible = \"layout\"",
                    .advice = "leave it out"});
      }
      segment.spec = with_layout(std::move(segment.spec), *request.layout);
    }
    const bool joined = !plan.segments.empty() && plan.segments.back().mesh == segment.mesh &&
                        to_json(plan.segments.back().spec) == to_json(segment.spec) &&
                        plan.segments.back().fingerprint == segment.fingerprint;
    if (joined) {
      plan.segments.back().to = to;
    } else {
      plan.segments.push_back(std::move(segment));
    }
    done = to;
  }
}

bool same_bits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double number_of(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// Steps of a segment after which its state is saved.
std::set<std::int64_t> saves_of(const VerifyPlan& plan, const VerifySegment& segment) {
  std::set<std::int64_t> saves;
  for (const VerifyTarget& target : plan.targets) {
    if (target.step > segment.from && target.step <= segment.to) {
      saves.insert(target.step);
    }
  }
  if (&segment != &plan.segments.back()) {
    saves.insert(segment.to);  // the next segment begins there
  }
  return saves;
}

/// The recorded validations.
std::set<std::int64_t> validations_of(const VerifyPlan& plan) {
  std::set<std::int64_t> steps;
  for (const RecordedNumbers& numbers : plan.numbers) {
    for (const CurvePoint& point : numbers.points) {
      if (point.validation_loss) {
        steps.insert(point.step);
      }
    }
  }
  return steps;
}

/// The names of tensors that differ, for people.
std::string difference_text(const TensorSource& expected, const TensorSource& got) {
  constexpr std::size_t most = 3;
  std::vector<std::string> names;
  for (const TensorDifference& one : compare_tensors(expected, got)) {
    names.push_back(one.problem.empty()
                        ? fmt::format("{} ({} elements, by at most {:.3g})", shown(one.name),
                                      one.elements, one.max_absolute)
                        : fmt::format("{} ({})", shown(one.name), one.problem));
  }
  const std::size_t all = names.size();
  names.resize(std::min(all, most));
  return all == 0 ? "tensors differ in bits, and not in values"
                  : join_words(names) + (all > most ? fmt::format(" and {} more", all - most) : "");
}

/// Error (input): nothing of the plan's steps is recorded. A long curve has every so many steps.
void check_comparable(const VerifyPlan& plan) {
  std::set<std::int64_t> steps;
  for (const RecordedNumbers& numbers : plan.numbers) {
    for (const CurvePoint& point : numbers.points) {
      steps.insert(point.step);
    }
  }
  const auto next = steps.lower_bound(plan.first);
  if (plan.targets.empty() && (next == steps.end() || *next > plan.last)) {
    fail_input({.thing = "--steps",
                .wrong = "no number of these steps is recorded, so there is nothing to compare",
                .expected = steps.empty()         ? "all steps, for the hash of the weights"
                            : next == steps.end() ? fmt::format("steps up to {}", *steps.rbegin())
                                                  : fmt::format("steps up to {} or more", *next),
                .got = fmt::format("{}:{}", plan.first, plan.last)});
  }
}

/// A record may be published without the weights.
bool has_files(const VerifyPlan& plan) {
  std::error_code ignored;
  return std::ranges::any_of(plan.exported->files, [&](const RecordedFile& file) {
    return fs::exists(fs::path(plan.run.folder) / file.name, ignored);
  });
}

}  // namespace

VerifyPlan plan_verification(const VerifyRequest& request) {
  VerifyPlan plan;
  std::error_code ignored;
  const bool is_export = fs::exists(fs::path(request.folder) / record_file, ignored) &&
                         !fs::exists(fs::path(request.folder) / "checkpoint.json", ignored);
  if (is_export) {
    plan_export(request, plan);
    use_recorded_plugins(plan.record.sessions.back(), paths_from(request, plan), request.plugins);
  } else {
    plan_checkpoints(request, plan);
  }
  plan.first = request.first == 0 ? 1 : request.first;
  plan.last = request.first == 0 ? plan.record.step() : request.last;
  if (plan.first < 1 || plan.last < plan.first || plan.last > plan.record.step()) {
    fail_input({.thing = "--steps",
                .wrong = "the record has no such steps",
                .expected = fmt::format("FIRST:LAST within 1:{}", plan.record.step()),
                .got = fmt::format("{}:{}", plan.first, plan.last)});
  }
  plan_segments(request, plan);
  for (const RecordedRun::Checkpoint& one : plan.run.saved) {
    if (one.step > plan.segments.front().from && one.step <= plan.last) {
      plan.targets.push_back({.step = one.step, .path = one.path});
    }
  }
  for (const VerifyTarget& target : plan.targets) {
    if (target.path != plan.run.saved.back().path) {
      add_record(target.path, plan);
    }
  }
  if (plan.exported && plan.last == plan.exported->step) {
    plan.targets.push_back({.step = plan.exported->step, .weights = plan.exported->weights});
  }
  check_comparable(plan);
  if (plan.exported && !has_files(plan)) {
    plan.notes.emplace_back(
        "the record is alone: the hash of the weights is compared, and no file of them");
  }
  const Session own = session_here();
  for (const Session& session : plan.record.sessions) {
    if (session.to >= plan.first) {
      note_differences(session, own, plan.notes);
    }
  }
  return plan;
}

std::vector<std::string> plugin_notes(const VerifyPlan& plan) {
  std::vector<std::string> notes;
  for (const Session& session : plan.record.sessions) {
    for (const RecordedPlugin& then : session.plugins) {
      for (const plugin::LoadedPlugin& now : plugin::host().loaded()) {
        const std::string note =
            fmt::format("the plugin {} was {} ({}), and is {} ({}) here", shown(then.name),
                        shown(then.version), shown(then.hash), now.version, now.digest);
        if (now.name == then.name && now.digest != then.hash &&
            std::ranges::find(notes, note) == notes.end()) {
          notes.push_back(note);
        }
      }
    }
  }
  return notes;
}

OpenedRun open_segment(const VerifyPlan& plan, const VerifySegment& segment,
                       const std::string& scratch) {
  RecordedRun run = plan.run;
  run.spec = segment.spec;
  run.fingerprint = segment.fingerprint;
  if (!run.spec.graph.offload.empty()) {
    run.spec.graph.offload = scratch;
  }
  if (segment.from > 0) {
    run.spec.checkpoint.resume =
        segment.checkpoint.empty() ? checkpoint_folder(scratch, segment.from) : segment.checkpoint;
    // What was allowed to differ between sessions is in their records.
    run.spec.checkpoint.allow = allowable_names(run.spec.model.family);
  }
  std::shared_ptr<const DataTask> task = open_task(run);
  RunSpec spec = with_data(run.spec, task->data());
  OpenedRun opened = open_run(std::move(spec), std::move(task), false);
  check_run(opened);
  check_start(opened, false);
  for (const auto& [name, value] : segment.fingerprint) {
    const auto own = opened.run.fingerprint.find(name);
    const std::string got = own == opened.run.fingerprint.end() ? "nothing" : own->second;
    // Rows that were left out later are not in the description of an earlier session.
    if (got != value && name != "data.exclude" && name != "train.on_spike") {
      fail_input({.thing = shown(plan.run.folder),
                  .wrong = fmt::format("{} is not as it was when the run was trained", shown(name)),
                  .expected = shown(value),
                  .got = shown(got),
                  .advice = "put back what it was trained with"});
    }
  }
  return opened;
}

std::string verify_rank(const VerifyPlan& plan, const VerifySegment& segment,
                        const OpenedRun& opened, const std::string& scratch,
                        collective::World& world) {
  const Run& run = opened.run;
  ops::set_threads(threads_of_rank(run.config));
  world.set_background(run.config.mesh.background);
  world.set_device_collectives(run.config.mesh.device_collectives);
  const DeviceMesh mesh = make_mesh(run.config);
  set_configured_links(run.config, mesh);
  const Device device = device_of(run.config, world.number_here(), world.ranks_here());
  const StepScope kernels([&](StepContext& step) { step.planned_device = device.type; });
  Trainer trainer(run, device);
  if (opened.start.checkpoint) {
    trainer.resume(*opened.start.checkpoint);
  }
  if (run.config.graph.capture) {
    trainer.capture_ahead();
  }
  const std::set<std::int64_t> saves = saves_of(plan, segment);
  const std::set<std::int64_t> validations = validations_of(plan);
  Json steps = Json::array();
  while (trainer.done() < segment.to) {
    const std::int64_t step = trainer.done() + 1;
    world.set_progress(step, "verifying");
    const bool validates = validations.contains(step);
    const StepResult result = trainer.step(step == segment.to || validates || saves.contains(step));
    Json numbers = {step, number(result.loss), number(result.grad_norm), number(result.lr)};
    if (validates) {
      if (const std::optional<Validation> validation = trainer.validate()) {
        numbers.push_back(number(validation->loss));
      }
    }
    steps.push_back(std::move(numbers));
    if (saves.contains(step)) {
      trainer.save(checkpoint_folder(scratch, step));
    }
  }
  return world.rank() == 0 ? json_text(steps) : std::string();
}

void compare_numbers(const VerifyPlan& plan, const VerifySegment& segment, const std::string& json,
                     Verdict& verdict) {
  std::map<std::int64_t, CurvePoint> computed;
  for (const nlohmann::json& one : parse_json(json)) {
    CurvePoint point{.step = one.at(0).get<std::int64_t>(),
                     .loss = number_of(one.at(1)),
                     .grad_norm = number_of(one.at(2)),
                     .lr = number_of(one.at(3))};
    if (one.size() > 4) {
      point.validation_loss = number_of(one.at(4));
    }
    computed[point.step] = point;
  }
  const double none = std::numeric_limits<double>::quiet_NaN();
  for (const RecordedNumbers& recorded : plan.numbers) {
    for (const CurvePoint& then : recorded.points) {
      if (then.step < plan.first || then.step <= segment.from || then.step > segment.to) {
        continue;
      }
      const auto found = computed.find(then.step);
      if (found == computed.end()) {
        fail({.thing = "verify", .wrong = fmt::format("step {} was not taken", then.step)});
      }
      const CurvePoint& now = found->second;
      const auto compare = [&](const char* name, double expected, double got) {
        ++verdict.numbers;
        if (!same_bits(expected, got)) {
          verdict.differences.push_back({.what = fmt::format("{} in {}", name, recorded.where),
                                         .step = then.step,
                                         .expected = fmt::format("{}", expected),
                                         .got = fmt::format("{}", got)});
        }
      };
      compare("loss", then.loss, now.loss);
      compare("grad_norm", then.grad_norm, now.grad_norm);
      compare("lr", then.lr, now.lr);
      if (then.validation_loss) {
        compare("validation_loss", *then.validation_loss, now.validation_loss.value_or(none));
      }
    }
  }
}

void compare_checkpoints(const VerifyPlan& plan, const std::string& scratch, Verdict& verdict) {
  for (const VerifyTarget& target : plan.targets) {
    const CheckpointReader again(checkpoint_folder(scratch, target.step));
    const std::string weights = stored_hash(again, "model.");
    verdict.checkpoints.emplace_back(target.step, weights);
    if (target.path.empty()) {
      if (target.weights != weights) {
        verdict.differences.push_back(
            {.what = fmt::format("the hash of the weights in {}", record_file),
             .step = target.step,
             .expected = shown(target.weights),
             .got = weights});
      }
      continue;
    }
    // A checkpoint that is damaged is one that differs, and the others are still compared.
    std::string expected;
    std::string differ;
    try {
      const CheckpointReader then(target.path);
      expected = stored_hash(then, "");
      if (expected != stored_hash(again, "")) {
        differ = difference_text(then, again);
      }
      if (const ReadRecord read = stored_record(then); !read.problem.empty()) {
        verdict.differences.push_back({.what = fmt::format("the record in {}", target.path),
                                       .step = target.step,
                                       .expected = "that of the run",
                                       .got = read.problem});
      } else if (read.record.sessions.front().begun != plan.record.sessions.front().begun) {
        verdict.differences.push_back(
            {.what = fmt::format("the record in {}", target.path),
             .step = target.step,
             .expected = "that of the run which began at " + plan.record.sessions.front().begun,
             .got = "one that began at " + shown(read.record.sessions.front().begun)});
      }
    } catch (const Error& error) {
      differ = error.what();
    }
    if (!differ.empty()) {
      verdict.differences.push_back({.what = target.path,
                                     .step = target.step,
                                     .expected = expected.empty() ? "a whole checkpoint" : expected,
                                     .got = differ});
    }
  }
  if (plan.exported && plan.last == plan.exported->step && has_files(plan)) {
    verdict.files = static_cast<std::int64_t>(plan.exported->files.size());
    for (const std::string& line : changed_exports(*plan.exported, plan.run.folder)) {
      verdict.differences.push_back(
          {.what = line, .step = plan.exported->step, .expected = "", .got = ""});
    }
  }
  std::ranges::stable_sort(verdict.differences, {}, &VerifyDifference::step);
}

void compare_exports(const VerifyPlan& plan, const std::string& folder, const std::string& again,
                     Verdict& verdict) {
  for (const RecordedFile& file : plan.exported->files) {
    std::error_code ignored;
    const fs::path now = fs::path(again) / file.name;
    const fs::path then = fs::path(folder) / file.name;
    if (!fs::is_regular_file(then, ignored)) {
      continue;  // compare_checkpoints has told it
    }
    const std::string got = fs::is_regular_file(now, ignored)
                                ? recorded_file(now.string(), file.name).hash
                                : "no such file";
    const std::string expected = recorded_file(then.string(), file.name).hash;
    if (got != expected) {
      verdict.differences.push_back({.what = fmt::format("{}, exported again", shown(file.name)),
                                     .step = plan.exported->step,
                                     .expected = expected,
                                     .got = got});
    }
  }
}

}  // namespace tessera::runs
