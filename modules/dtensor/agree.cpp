// The check that from_local makes on request.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import :agree;

namespace tessera {
namespace {

/// Numbers that each rank tells the others.
struct Note {
  static constexpr int length = 3 + max_dims + 1 + max_dims;
  std::int64_t dims = 0;
  std::int64_t dtype = 0;
  std::int64_t hash = 0;  // of the bytes
  std::int64_t extents[max_dims] = {};
  std::int64_t stated_dims = -1;  // of the global shape that the rank was given; -1 for none
  std::int64_t stated[max_dims] = {};

  Dims shape() const { return Dims(std::span(extents, static_cast<std::size_t>(dims))); }
};
static_assert(sizeof(Note) == Note::length * sizeof(std::int64_t));

std::int64_t hash_of(const Tensor& local) {
  const Tensor x = operands::contiguous(on_host(local));
  const auto* bytes = static_cast<const unsigned char*>(x.raw_data());
  std::size_t left = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  std::uint64_t hash = 0x6c6f63616c;
  while (left > 0) {
    std::uint64_t word = 0;
    const std::size_t taken = left < sizeof word ? left : sizeof word;
    std::memcpy(&word, bytes, taken);
    hash = hash_combine(hash, word);
    bytes += taken;
    left -= taken;
  }
  return static_cast<std::int64_t>(hash);
}

/// The sum of the extents along the axes that cut each dim, the other coordinates being 0.
Dims assembled_shape(const Layout& layout, std::span<const Note> notes) {
  Dims shape = notes[0].shape();
  for (int dim = 0; dim < shape.size(); ++dim) {
    if (!layout.shards(dim)) {
      continue;
    }
    shape[dim] = 0;
    const DeviceMesh& mesh = layout.mesh();
    for (std::size_t i = 0; i < notes.size(); ++i) {
      const Dims at = *mesh.coordinates_of(mesh.ranks()[i]);
      bool counts = true;
      for (int axis = 0; axis < mesh.ndim(); ++axis) {
        counts &= layout.placement(axis).is_shard(dim) || at[axis] == 0;
      }
      shape[dim] += counts ? notes[i].extents[dim] : 0;
    }
  }
  return shape;
}

}  // namespace

Dims agree_on_parts(const Tensor& local, const Layout& layout, std::optional<Dims> shape) {
  Note mine;
  mine.dims = local.dims();
  mine.dtype = static_cast<std::int64_t>(local.dtype());
  mine.hash = local.is_meta() ? 0 : hash_of(local);
  for (int d = 0; d < local.dims(); ++d) {
    mine.extents[d] = local.shape()[d];
  }
  if (shape) {
    mine.stated_dims = shape->size();
    std::copy(shape->begin(), shape->end(), mine.stated);
  }
  const DeviceMesh& mesh = layout.mesh();
  std::vector<Note> notes(static_cast<std::size_t>(mesh.size()));
  const CommunicationTimer timer;
  collective::World::current()
      .communicator(mesh.ranks())
      .all_gather(&mine, notes.data(), Note::length, DType::i64);
  if (communication_reported()) {
    std::string axes;
    for (const std::string& name : mesh.axis_names()) {
      axes += (axes.empty() ? "" : "+") + name;
    }
    record_communication({"all_gather", axes,
                          collective::received_bytes(collective::CallKind::all_gather, Note::length,
                                                     DType::i64, 0, mesh.size()),
                          "from_local's check", false, timer.seconds()});
  }

  const Note& first = notes.front();
  const int first_rank = mesh.ranks().front();
  for (std::size_t i = 1; i < notes.size(); ++i) {
    const Note& note = notes[i];
    if (note.dims != first.dims || note.dtype != first.dtype) {
      fail({.thing = "from_local",
            .wrong = fmt::format("rank {} has {}{}, rank {} {}{}", first_rank,
                                 name_of(static_cast<DType>(first.dtype)), to_string(first.shape()),
                                 mesh.ranks()[i], name_of(static_cast<DType>(note.dtype)),
                                 to_string(note.shape())),
            .advice = "local tensors agree in type and number of dims"});
    }
    if (note.stated_dims != first.stated_dims ||
        std::memcmp(note.stated, first.stated, sizeof note.stated) != 0) {
      fail({.thing = "from_local",
            .wrong = fmt::format("rank {} and rank {} give different global shapes", first_rank,
                                 mesh.ranks()[i]),
            .advice = "pass the same one on every rank, or none"});
    }
  }
  const Dims whole = shape ? *shape : assembled_shape(layout, notes);
  std::map<std::vector<std::int64_t>, std::size_t> copies;  // by place and term
  for (std::size_t i = 0; i < notes.size(); ++i) {
    const int rank = mesh.ranks()[i];
    const LocalPart part = local_part(whole, layout, rank);
    if (!(part.shape == notes[i].shape())) {
      fail({.thing = "from_local",
            .wrong = fmt::format("rank {} has a local tensor of {}, its part of {} in {} is {}",
                                 rank, to_string(notes[i].shape()), to_string(whole),
                                 to_string(layout), to_string(part.shape)),
            .advice =
                "shards are cut into chunks of the dim's extent divided by the ranks, rounded up"});
    }
    std::vector<std::int64_t> place(part.offset.begin(), part.offset.end());
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      place.push_back(layout.placement(axis).is_partial() ? mesh.coordinate_of(rank, axis) : 0);
    }
    const auto [it, fresh] = copies.try_emplace(place, i);
    if (!fresh && part.shape.product() > 0 && notes[it->second].hash != notes[i].hash) {
      fail({.thing = "from_local",
            .wrong = fmt::format(
                "ranks {} and {} hold copies of one part of {} in {}, and their values differ",
                mesh.ranks()[it->second], rank, to_string(whole), to_string(layout)),
            .advice = "is one of the axes Partial, or was a random stream not in step?"});
    }
  }
  return whole;
}

}  // namespace tessera
