module;
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <limits>
#include <optional>
#include <range/v3/view/enumerate.hpp>
module tessera.app.trace;

import tessera.base;
import tessera.app.base;

namespace tessera::app {
namespace {

using ranges::views::enumerate;

constexpr std::size_t most_rows = 20;

/// Times of one rank of a group in one call.
struct Member {
  const FileSlice* issue = nullptr;
  const FileSlice* wait = nullptr;
};

bool is_operator(const FileSlice& s) {
  return s.category == "operator" || s.category == "local operator";
}
/// A scope, whose own time is the program's between what is within it.
bool is_scope(const FileSlice& s) {
  return s.category == "module" || s.category == "phase" || s.category == "hook" ||
         s.category == "gradient";
}

/// "model.layers.3.mlp" -> "model.layers.*.mlp": layers of a kind are one row.
std::string pattern_of(const std::string& module) {
  std::string pattern;
  for (std::size_t begin = 0; begin <= module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    const std::string part = module.substr(begin, end - begin);
    const bool number = !part.empty() && std::ranges::all_of(part, [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    pattern += (begin > 0 ? "." : "") + (number ? std::string("*") : part);
    begin = end + 1;
  }
  return pattern;
}

/// Sums of times by name, as rows in falling order.
class Sums {
 public:
  struct Sum {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
    double first = 0;
    double second = 0;
    double total() const { return first + second; }
  };
  Sum& operator[](const std::string& name) { return sums_[name]; }
  bool empty() const { return sums_.empty(); }

  /// The largest ones; the rest as one.
  std::vector<std::pair<std::string, Sum>> sorted() const {
    std::vector<std::pair<std::string, Sum>> rows(sums_.begin(), sums_.end());
    std::ranges::sort(rows, [](const auto& a, const auto& b) {
      return a.second.total() != b.second.total() ? a.second.total() > b.second.total()
                                                  : a.first < b.first;
    });
    if (rows.size() > most_rows) {
      Sum rest;
      for (std::size_t i = most_rows; i < rows.size(); ++i) {
        rest.calls += rows[i].second.calls;
        rest.bytes += rows[i].second.bytes;
        rest.first += rows[i].second.first;
        rest.second += rows[i].second.second;
      }
      const std::size_t others = rows.size() - most_rows;
      rows.resize(most_rows);
      rows.emplace_back(fmt::format("{} others", others), rest);
    }
    return rows;
  }

 private:
  std::map<std::string, Sum> sums_;
};

class Summary {
 public:
  explicit Summary(const TraceData& trace)
      : trace_(trace),
        parts_(static_cast<double>(trace.ranks.size()) *
               static_cast<double>(trace.last_step - trace.first_step + 1)) {
    for (const std::vector<FileSlice>& slices : trace.ranks) {
      for (const FileSlice& s : slices) {
        total_ += s.own;
      }
    }
  }

  std::string text() const {
    return header() + operators() + modules() + communication() + memory();
  }

 private:
  /// Milliseconds of a step, mean of the ranks.
  std::string time(double microseconds) const {
    return fmt::format("{:.3f}", microseconds / parts_ / 1000);
  }
  static std::string percent(double part, double whole) {
    return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
  }
  std::string count(std::int64_t calls) const {
    return fmt::format("{:.1f}", static_cast<double>(calls) / parts_);
  }

  std::string header() const {
    return fmt::format(
               "steps {} to {}, {} rank{}, {}: {} ms per step (all times and counts: per step, "
               "mean of the ranks)\n",
               trace_.first_step, trace_.last_step, trace_.ranks.size(),
               trace_.ranks.size() > 1 ? "s" : "", trace_.mesh, time(total_)) +
           shares();
  }

  /// What a step's time is. Where a model is divided into stages, what a stage waits for the
  /// messages of others is its bubble.
  std::string shares() const {
    double waiting = 0;
    double communicating = 0;
    for (const std::vector<FileSlice>& slices : trace_.ranks) {
      for (const FileSlice& s : slices) {
        if (s.waits_for_message()) {
          waiting += s.own;
        } else if (s.waits() || s.category == "collective") {
          communicating += s.own;
        }
      }
    }
    return fmt::format("  computing {}, communicating {}, waiting for messages of stages {}\n",
                       percent(total_ - waiting - communicating, total_),
                       percent(communicating, total_), percent(waiting, total_));
  }

  std::string operators() const {
    Sums sums;
    for (const std::vector<FileSlice>& slices : trace_.ranks) {
      for (const FileSlice& s : slices) {
        const std::string name = is_operator(s)               ? s.name
                                 : is_scope(s)                ? "(between operators)"
                                 : s.category == "collective" ? "(issuing collectives)"
                                 : s.waits_for_message()      ? "(waiting for a message)"
                                 : s.waits()                  ? "(waiting)"
                                                              : "(" + s.category + ")";
        Sums::Sum& sum = sums[name];
        sum.calls += s.within ? 0 : 1;
        sum.first += s.own;
      }
    }
    TableRows rows{{"operator", "calls", "ms", "share"}};
    for (const auto& [name, sum] : sums.sorted()) {
      rows.push_back({name, count(sum.calls), time(sum.first), percent(sum.first, total_)});
    }
    return "\ntime by operator, without what it calls\n" + format_table(rows);
  }

  std::string modules() const {
    Sums sums;
    for (const std::vector<FileSlice>& slices : trace_.ranks) {
      for (const FileSlice& s : slices) {
        Sums::Sum& sum = sums[s.module.empty() ? "(outside of modules)" : pattern_of(s.module)];
        (s.backward ? sum.second : sum.first) += s.own;
      }
    }
    TableRows rows{{"module", "forward ms", "backward ms", "share"}};
    for (const auto& [name, sum] : sums.sorted()) {
      rows.push_back({name, time(sum.first), time(sum.second), percent(sum.total(), total_)});
    }
    return "\ntime by module, without the modules within it\n" + format_table(rows);
  }

  std::string communication() const {
    const std::vector<CallTimes> calls = call_times(trace_);
    if (calls.empty()) {
      return "\nno communication\n";
    }
    Sums kinds;
    Sums waits;
    double exposed = 0;
    double hidden = 0;
    for (const CallTimes& call : calls) {
      Sums::Sum& sum = kinds[fmt::format("{} {}", call.name, call.group)];
      ++sum.calls;
      sum.bytes += call.bytes;
      sum.first += call.exposed;
      sum.second += call.hidden;
      exposed += call.exposed;
      hidden += call.hidden;
      if (call.waited_for > 0) {
        Sums::Sum& wait = waits[fmt::format("rank {} for rank {}", call.rank, call.last)];
        ++wait.calls;
        wait.first += call.waited_for;
      }
    }
    for (const std::vector<FileSlice>& slices : trace_.ranks) {
      for (const FileSlice& s : slices) {
        if (s.waits() && !s.collective) {
          Sums::Sum& sum = kinds[fmt::format("({})", s.name)];
          ++sum.calls;
          sum.first += s.end - s.begin;
          exposed += s.end - s.begin;
        }
      }
    }
    TableRows rows{{"collective", "calls", "bytes", "exposed ms", "hidden ms", "hidden"}};
    for (const auto& [name, sum] : kinds.sorted()) {
      rows.push_back(
          {name, count(sum.calls),
           format_bytes(static_cast<std::uint64_t>(static_cast<double>(sum.bytes) / parts_)),
           time(sum.first), time(sum.second), percent(sum.second, sum.total())});
    }
    std::string text = "\ntime by collective and ranks\n" + format_table(rows);
    text += fmt::format("  communication: {} ms, overlapped with other work: {}\n",
                        time(exposed + hidden), percent(hidden, exposed + hidden));
    const auto ranks = static_cast<double>(trace_.ranks.size());
    TableRows waited{{"waited", "calls", "ms"}};
    for (const auto& [name, sum] : waits.sorted()) {
      // The longest of one rank, not the mean of all.
      waited.push_back({name,
                        fmt::format("{:.1f}", static_cast<double>(sum.calls) * ranks / parts_),
                        time(sum.first * ranks)});
    }
    return waited.size() > 1 ? text + "\nwhich rank waited for which (times of that rank)\n" +
                                   format_table(waited)
                             : text;
  }

  std::string memory() const {
    if (trace_.categories.empty()) {
      return "";
    }
    TableRows rows{{"rank"}};
    rows[0].insert(rows[0].end(), trace_.categories.begin(), trace_.categories.end());
    for (const auto& [rank, peaks] : enumerate(trace_.memory_peaks)) {
      rows.push_back({fmt::format("{}", rank)});
      for (const double bytes : peaks) {
        rows.back().push_back(format_bytes(static_cast<std::uint64_t>(std::max(0.0, bytes))));
      }
    }
    return "\npeaks of memory by category\n" + format_table(rows);
  }

  const TraceData& trace_;
  double parts_;  // ranks times steps
  double total_ = 0;
};

}  // namespace

namespace {

bool is_streamed(const FileSlice& issue) { return issue.category == "stream"; }

/// When peers could see the call.
double issued_at(const FileSlice& issue) { return is_streamed(issue) ? issue.begin : issue.end; }

}  // namespace

std::vector<CallTimes> call_times(const TraceData& trace) {
  std::map<std::pair<std::string, std::int64_t>, std::map<int, Member>> calls;
  for (std::size_t r = 0; r < trace.ranks.size(); ++r) {
    for (const auto* slices : {&trace.ranks[r], &trace.streamed[r]}) {
      for (const FileSlice& s : *slices) {
        if (s.collective) {
          Member& member = calls[{s.group, s.call}][static_cast<int>(r)];
          (s.category == "wait" ? member.wait : member.issue) = &s;
        }
      }
    }
  }
  std::vector<CallTimes> all;
  for (const auto& [key, members] : calls) {
    int last = -1;
    double ready = -std::numeric_limits<double>::infinity();
    for (const auto& [rank, member] : members) {
      if (member.issue != nullptr && issued_at(*member.issue) > ready) {
        ready = issued_at(*member.issue);
        last = rank;
      }
    }
    for (const auto& [rank, member] : members) {
      if (member.issue == nullptr) {
        continue;  // issued before the trace began
      }
      const bool streamed = is_streamed(*member.issue);
      const double issued = streamed ? member.issue->queued : member.issue->end;
      CallTimes times{.name = member.issue->name,
                      .group = key.first,
                      .rank = rank,
                      .bytes = member.issue->bytes,
                      .exposed = streamed ? 0 : issued - member.issue->begin,
                      .last = last};
      double free_until = streamed ? member.issue->end : ready;
      if (member.wait != nullptr) {
        times.exposed += member.wait->end - member.wait->begin;
        free_until = std::min(free_until, member.wait->begin);
        times.waited_for =
            rank == last ? 0
                         : std::max(0.0, std::min(member.wait->end, ready) - member.wait->begin);
      }
      times.hidden = std::max(0.0, free_until - issued);
      all.push_back(std::move(times));
    }
  }
  return all;
}

std::string trace_summary(const TraceData& trace) { return Summary(trace).text(); }

}  // namespace tessera::app
