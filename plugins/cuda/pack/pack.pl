#!/usr/bin/env perl
# ./dev gpu pack: one archive for a machine with a GPU that has nothing else (docs/first-gpu-day.md). It needs no GPU.
#
#   pack.pl --build BUILD --to FILE [--architectures 90a;100] [--compiler TEXT] [--plugin FILE]... [--small]
#
#   --architectures  of the machine code in the plugin cuda, as it was built
#   --compiler       that has made it: nvcc 13.0
#   --plugin         instead of the installed plugin of this name
#   --small          small sizes, for the emulator
#
# The order, owners and times of its files are fixed.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use File::Copy qw(copy);
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use Getopt::Long;
use Time::HiRes qw(time);

my ($build, $to, @named, $small);
my ($architectures, $compiler) = ('', 'no compiler');
GetOptions('build=s' => \$build, 'to=s' => \$to, 'architectures=s' => \$architectures, 'compiler=s' => \$compiler,
  'plugin=s' => \@named, 'small' => \$small) && !@ARGV && $build && $to
  or die "usage: ./dev gpu pack [--architectures 90a;100] [--to FILE]\n";
my $root = abs_path(dirname(__FILE__) . '/../../..');
$build = abs_path($build) // die "pack: there is no build\n";
my $start = time;
my $most = 36 << 20;  # bytes
my $name = 'tessera-gpu';
my $scratch = tempdir(CLEANUP => 1);
my $folder = "$scratch/$name";
$to = abs_path(dirname($to)) . '/' . basename($to);

sub run {
  my (@command) = @_;
  open my $pipe, '-|', @command or die "pack: $command[0]: $!\n";
  local $/;
  my $out = <$pipe> // '';
  close $pipe or die "pack: '@command' fails" . ($! ? ": $!" : '') . "\n";
  return $out;
}

sub put {
  my ($from, $path) = @_;
  make_path(dirname("$folder/$path"));
  copy($from, "$folder/$path") or die "pack: $from: $!\n";
  chmod((-x $from ? 0755 : 0644), "$folder/$path");
}

# ---- programs, plugins, and what they link to; libraries of glibc are the other machine's ----
for my $program (qw(tessera tessera-tools tessera-first-day)) {
  -x "$build/bin/$program" or die "pack: $build/bin/$program is not there; run ./dev gpu pack\n";
  put("$build/bin/$program", "bin/$program");
}
my %plugins = map { basename($_) => $_ } glob("$build/lib/tessera/plugins/*.so"), map { abs_path($_) // die "pack: $_: no such file\n" } @named;
$plugins{'cuda.so'} or die "pack: there is no plugin cuda: nvcc 12.8 or later was not found (./dev setup cuda installs it)\n";
# Of use with MPI's launcher only; with receivers elsewhere, and linked to libraries of networks; and 13 MiB with Arrow's.
delete @plugins{qw(mpi.so http_sinks.so prometheus.so parquet.so)};
put($plugins{$_}, "lib/tessera/plugins/$_") for sort keys %plugins;
my %libraries;
$ENV{LD_LIBRARY_PATH} = join ':', "$build/lib", grep { defined && length } $ENV{LD_LIBRARY_PATH};
for my $file ((map { "$build/bin/$_" } qw(tessera tessera-tools tessera-first-day)), values %plugins) {
  for (split /\n/, run('ldd', $file)) {
    /=> not found/ and die "pack: $file: $_\n";
    my ($library, $path) = /^\s+(\S+) => (\/\S+)/ or next;
    $libraries{$library} = $path unless $library =~ /^(?:libc|libm|libdl|libpthread|librt|libresolv|libutil)\.so\.|^ld-linux/;
  }
}
put(abs_path($libraries{$_}), "lib/$_") for sort keys %libraries;
my @binaries = (glob("$folder/bin/*"), glob("$folder/lib/*.so*"), glob("$folder/lib/tessera/plugins/*.so"));
run('strip', '--strip-unneeded', $_) for grep { !m{/plugins/} } @binaries;  # a plugin's content is checked

# The oldest glibc that has all of their symbols.
my ($glibc) = reverse sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1] }
  map { map { [split /\./] } run('objdump', '-T', $_) =~ /\bGLIBC_(\d+\.\d+)/g } @binaries;
$glibc = join '.', @$glibc;

sub write_file {
  my ($path, $text) = @_;
  make_path(dirname("$folder/$path"));
  open my $file, '>:raw', "$folder/$path" or die "pack: $path: $!\n";
  print {$file} $text;
  close $file or die "pack: $path: $!\n";
}

# ---- configs, texts, the script, the page ----
put($_, 'configs/' . basename($_)) for glob("$root/configs/*.toml");
put($_, 'configs/gpu/' . basename($_)) for glob("$root/configs/gpu/*.toml");
write_file('text/squares.txt', join ' ', map { "the number " . $_ * $_ . " is the square of $_;" } 1 .. 4000);
run($^X, "$root/configs/gpu/tokens.pl", "$folder/text/tokens.npy", $small ? (4096, 512) : 300_000);
put("$root/plugins/cuda/pack/run.sh", 'run.sh');
put("$root/docs/first-gpu-day.md", 'FIRST-GPU-DAY.md');
write_file('GLIBC', "$glibc\n");

# ---- what GPUs are compared with, and the list of all files ----
my $git = qx(git -C '$root' log -1 --format='%h %ct' 2>/dev/null) // '';  # nothing in an unpacked archive of the sources
my ($commit, $time) = $git =~ /^(\w+) (\d+)$/ ? ($1, $2) : ('unknown', 0);
my @sizes = $small ? ('--small') : ();
{
  local $ENV{LD_LIBRARY_PATH} = "$folder/lib:$ENV{LD_LIBRARY_PATH}";
  make_path("$folder/reference");
  run("$folder/bin/tessera-first-day", 'record', $folder, @sizes);
  run("$folder/bin/tessera-first-day", 'seal', $folder, '--commit', $commit, '--compiler', $compiler, '--glibc', $glibc, @sizes,
    map { ('--architecture', $_) } split /;/, $architectures);
}

# Libraries and programs are large: each is packed by zstd, and run.sh unpacks it once. The list has what they are then.
put("$build/bin/tessera-unpack", 'bin/unpack');
run('strip', "$folder/bin/unpack");
for my $file (grep { -s > 1 << 18 } glob("$folder/bin/tessera*"), glob("$folder/lib/*.so*"), glob("$folder/lib/tessera/plugins/*.so")) {
  run('zstd', $small ? '-12' : '-19', '--quiet', '--rm', $file);
}

my $new = "$to.new";
my $packed = system('sh', '-c', 'tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --mtime=@"$2" -cf - "$3" | ' .
  'gzip -9n >"$4"', 'pack', $scratch, $time, $name, $new);
die "pack: $new cannot be written\n" if $packed != 0 || !-s $new;
my $size = -s $new;
if ($size > $most) {
  unlink $new;
  die sprintf "pack: the archive would have %.1f MiB (at most 36); name fewer architectures\n",
    $size / 2**20;
}
rename $new, $to or die "pack: $to: $!\n";
printf "pack: %s, %.1f MiB, commit %s, machine code for %s, glibc %s or later (%.0f s)\n", $to, $size / 2**20, $commit,
  $architectures || 'no GPU (PTX only)', $glibc, time - $start;
