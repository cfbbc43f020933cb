// Errors, data types, devices and their memory, meshes and layouts.
export module tessera:places;

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.placement;

export namespace tessera {

// Errors, and the log.
using tessera::Error, tessera::ErrorKind, tessera::exit_code_of, tessera::fail, tessera::require;
using tessera::format_bytes;
using tessera::log, tessera::LogLevel, tessera::set_log_level;

// Data types, reductions, shapes.
using tessera::Dims, tessera::ReduceOp, tessera::wrap_dim;
using tessera::DType, tessera::dtype_from_name, tessera::is_floating, tessera::promote,
    tessera::size_of;
using tessera::name_of;

// Devices, streams and memory.
using tessera::check_device, tessera::device_count, tessera::device_for_rank,
    tessera::device_memory, tessera::device_type;
using tessera::cpu, tessera::Device, tessera::DeviceType, tessera::meta;
using tessera::current_stream, tessera::Event, tessera::record_event, tessera::Stream,
    tessera::StreamScope, tessera::synchronize;
using tessera::memory_statistics, tessera::memory_table, tessera::MemoryCategory,
    tessera::MemoryScope, tessera::MemoryStatistics, tessera::OutOfMemory,
    tessera::release_cached_memory, tessera::reset_memory_peaks;

// Meshes.
using tessera::current_mesh, tessera::current_rank, tessera::DeviceMesh, tessera::MeshScope,
    tessera::require_mesh;

// Placements, layouts, and the plan of a redistribution.
using tessera::draw_svg, tessera::draw_text;
using tessera::explain, tessera::Link, tessera::Plan, tessera::plan_redistribute, tessera::set_link,
    tessera::LocalStep, tessera::Step, tessera::StepKind;
using tessera::Layout, tessera::parse_placement, tessera::parse_placements;
using tessera::local_offset, tessera::local_part, tessera::local_shape, tessera::LocalPart;
using tessera::NormPartial, tessera::Partial, tessera::Placement, tessera::PlacementKind,
    tessera::Replicate, tessera::Shard, tessera::StridedShard;
using tessera::to_string;

}  // namespace tessera
