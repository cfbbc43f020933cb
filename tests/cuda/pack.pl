#!/usr/bin/env perl
# ./dev gpu pack and its run.sh, on the emulator, in a root that has a shell, tar, gzip, glibc, and the emulator's libraries.
#   pack.pl make|run|inputs|busybox|kills REPOSITORY BUILD EMULATOR KERNELS FOLDER PLUGIN...
# make: packs small sizes into FOLDER. run: some items of each part, killed and continued, and the page. inputs: what is wrong
# is one clear error. busybox: its shell and tar, instead of dash and GNU's. kills: in each part, and every item of `faults`.
# Skipped (77) where no root can be entered, and where there is no busybox.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use File::Copy qw(copy);
use File::Path qw(make_path remove_tree);
use FindBin;
use JSON::PP;
use POSIX ();
use Time::HiRes qw(sleep time);
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);

my ($what, $repository, $build, $emulator, $kernels, $folder, @plugins) = @ARGV;
die "usage: pack.pl make|run|inputs|busybox|kills REPOSITORY BUILD EMULATOR KERNELS FOLDER PLUGIN...\n" unless @plugins;
my $archive = "$folder/pack.tar.gz";
my $system = $^O eq 'linux' ? `uname -m` : '';
exit 77 unless $system =~ /x86_64/;

sub pack_to {
  my ($file) = @_;
  my @command = ($^X, "$repository/plugins/cuda/pack/pack.pl", '--build', $build, '--to', $file, '--small', '--architectures', '90a',
    '--compiler', 'nvcc 13.0', map { ('--plugin', $_) } @plugins);
  system(@command) == 0 or die "'@command' fails\n";
}

if ($what eq 'make') {
  remove_tree($folder);
  make_path($folder);
  pack_to($archive);
  die "the archive is larger than 36 MiB\n" if -s $archive > 36 << 20;
  exit 0;
}

# ---- a root with little in it ----
my $root = "$folder/root-$what";
my @unshare = ('unshare', '--mount', '--pid', '--fork', '--kill-child', ($> == 0 ? () : '--map-root-user'));
if (system("@unshare true 2>/dev/null") != 0) {
  print "skipped: a root cannot be entered here (neither root nor user namespaces)\n";
  exit 77;
}

sub place {
  my ($from, $to) = @_;
  make_path(dirname("$root$to"));
  copy($from, "$root$to") or die "$from: $!\n";
  chmod 0755, "$root$to";
}

sub program {
  my ($name) = @_;
  my ($path) = grep { -x } map { "$_/$name" } split(/:/, $ENV{PATH}), '/bin', '/usr/bin';
  return $path;
}

my $libraries = '/usr/lib/x86_64-linux-gnu';
my $packages = '/root/venv/lib/python3.12/site-packages/nvidia';
sub make_root {
  my (%programs) = @_;  # name there: name here
  remove_tree($root);
  make_path(map { "$root$_" } qw(/proc /dev /tmp /root /work));
  for my $name (sort keys %programs) {
    my $path = program($programs{$name}) // die "$programs{$name}: there is no such program\n";
    place($path, "/bin/$name");
    for (`ldd $path 2>/dev/null`) {
      place(abs_path($1), $1) if m{(/\S+\.so\S*)};
    }
  }
  # All of glibc: the pack has none of it.
  my %glibc = map { $_ => 1 } qw(libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1);
  for (`ldd $build/bin/tessera`) {
    place(abs_path($2), $2) if m{(\S+) => (/\S+)} && $glibc{$1};
    place(abs_path($1), $1) if m{^\s+(/\S+ld-linux\S+)};
  }
  for (glob('/lib/x86_64-linux-gnu/lib{dl,pthread,rt}.so.*')) { place($_, $_) }
  place("$emulator/libcuda.so.1", "$libraries/libcuda.so.1");
  place("$emulator/libnvidia-ml.so.1", "$libraries/libnvidia-ml.so.1");
  place("$emulator/libcublasLt.so.13", "$packages/cu13/lib/libcublasLt.so.13");
  place("$emulator/libcudnn.so.9", "$packages/cudnn/lib/libcudnn.so.9");
  place("$emulator/libnccl.so.2", "$packages/nccl/lib/libnccl.so.2");
  place($kernels, '/emulated/kernels.so');
  place($archive, '/work/pack.tar.gz');
}

my ($chroot) = grep { -x } '/usr/sbin/chroot', '/usr/bin/chroot';
my %environment = (PATH => '/bin', HOME => '/root', TESSERA_EMULATOR_KERNELS => '/emulated/kernels.so', TESSERA_EMULATOR_DEVICES => 1,
  map { ($_ => $ENV{$_}) } grep { defined $ENV{$_} } qw(TESSERA_EMULATOR_MODES));

# Starts a shell's command in the root, with mounts that `before` makes; its process.
sub start {
  my ($command, %options) = @_;
  my %set = (%environment, %{ $options{set} // {} });
  my $mounts = "mount --rbind /dev '$root/dev' && mount -t proc proc '$root/proc' && " . ($options{before} // 'true');
  my $pid = fork // die "fork: $!\n";
  if ($pid == 0) {
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', "$folder/$what.out" or die "$folder/$what.out: $!\n";
    open STDERR, '>&', \*STDOUT;
    no warnings 'exec';
    %ENV = %set;
    exec '/usr/bin/env', '-u', 'PWD', @unshare, '/bin/sh', '-c', "$mounts && cd '$root' && exec $chroot . /bin/sh -c \"\$1\"", 'root', $command;
    POSIX::_exit(127);
  }
  return $pid;
}

# (status, output)
sub in_root {
  my ($command, %options) = @_;
  my $pid = start($command, %options);
  waitpid $pid, 0;
  my $text = text_of("$folder/$what.out");
  print "\$ $command\n$text";
  return ($? >> 8, $text);
}

my $pack = "$root/work/tessera-gpu";
my $results = "$pack/results/results.jsonl";
sub items { return map { decode_json($_) } grep { /"item"/ } split /\n/, text_of($results) }
sub item {
  my ($part, $name) = @_;
  my ($found) = grep { $_->{part} eq $part && $_->{item} eq $name } reverse items();
  return $found // die "there is no result of $part, $name\n";
}

sub expect {
  my ($name, $wanted, $pattern, $status, $text) = @_;
  die "$name: status $status (expected $wanted):\n$text" unless $status == $wanted;
  die "$name: it does not print $pattern:\n$text" unless $text =~ $pattern;
  die "$name: it prints more than one error:\n$text" if $wanted == 2 && 1 != (() = $text =~ /^error: /mg);
}

if ($what eq 'busybox' && !program('busybox')) {
  print "skipped: there is no busybox\n";
  exit 77;
}
make_root($what eq 'busybox' ? map { $_ => 'busybox' } qw(sh tar gzip) : (sh => 'dash', tar => 'tar', gzip => 'gzip'));
my ($status, $text) = in_root('cd /work && tar -xzf pack.tar.gz && echo unpacked');
expect('unpack', 0, qr/^unpacked$/m, $status, $text);
my $run = 'cd / && /work/tessera-gpu/run.sh';
if ($what eq 'inputs') {
  my $tools = "$pack/bin/tessera-tools.zst";
  copy($tools, "$folder/whole.zst") or die "$tools: $!\n";
  truncate($tools, (-s $tools) / 2) or die "$tools: $!\n";
  expect('a cut file', 2, qr/tessera-tools\.zst: the file ends too early/, in_root("$run part doctor"));
  -e "$pack/bin/tessera-tools" and die "a file that was cut is there as if it were whole\n";
  copy("$folder/whole.zst", $tools) or die "$tools: $!\n";
  write_file("$pack/bin/tessera-tools.part.1", 'of a start that was killed');
}

# Kills the runner, as an impatient user does, once it has written a result of the part, and up to `later` seconds later.
sub kill_in {
  my ($part, $command, $later) = @_;
  my %before = -e $results ? map { ("$_->{part} $_->{item}" => 1) } items() : ();
  my $pid = start($command);
  my $end = time + 1200;
  until (-e $results && grep { $_->{part} eq $part && !$before{"$_->{part} $_->{item}"} } items()) {
    die "no result of $part comes:\n" . text_of("$folder/$what.out") if time > $end || waitpid($pid, POSIX::WNOHANG()) == $pid;
    sleep 0.1;
  }
  sleep(rand($later // 0));
  kill 9, $pid;  # and with it all processes of its namespace
  waitpid $pid, 0;
}

if ($what eq 'run') {
  ($status, $text) = in_root("$run part doctor 8400");
  expect('doctor', 0, qr/^doctor: 2 of 2 passed/m, $status, $text);
  my $versions = item('doctor', 'versions')->{facts};
  die "a library was not found: @{$versions->{missing}}\n" if grep { !/libnvrtc/ } @{ $versions->{missing} };
  die "libcublasLt is not that of Python's packages\n" unless grep { /^\Q$packages\E.*libcublasLt/ } @{ $versions->{libraries} };
  ($status, $text) = in_root("$run part operators 8400 --only rms_norm");
  expect('operators', 0, qr/^  rms_norm: passed .*"calls":[1-9]/m, $status, $text);
  # An operator that loses the device, and one without a kernel, fail alone.
  ($status, $text) = in_root("$run part operators 8400 --only swiglu", set => { TESSERA_EMULATOR_LOSE => '0 1' });
  expect('a lost device', 1, qr/^  swiglu: failed .*cannot use its GPU any more/m, $status, $text);
  die "the next operator was not tried in a process of its own:\n$text" unless $text =~ /swiglu_backward: failed/;
  ($status, $text) = in_root("$run part operators 8400 --only swiglu");
  expect('operators again', 0, qr/^  swiglu: passed/m, $status, $text);
  my $before = item('operators', 'swiglu');
  ($status, $text) = in_root("$run part styles 8400 --only 'one_rank graphs'");
  expect('styles', 0, qr/^  one_rank graphs: passed .*"difference":/m, $status, $text);
  ($status, $text) = in_root("$run part rates 8400 --only 'norms'");
  expect('rates', 0, qr/"share_of_bandwidth":/, $status, $text);
  ($status, $text) = in_root("$run part models 8400 --only qwen_1.5b");
  expect('models', 0, qr/qwen_1\.5b, by operator: passed .*"measured_seconds":/, $status, $text);
  ($status, $text) = in_root("$run part faults 8400 --only 'stopped'");
  expect('faults', 0, qr/a process that is stopped: passed/, $status, $text);
  # What compute-sanitizer is asked, and what it answers.
  my $sanitizer = sub {
    my ($summary, $status) = @_;
    write_file("$root/bin/compute-sanitizer", "#!/bin/sh\necho \"$summary; \$*\"\nexit $status\n");
    chmod 0755, "$root/bin/compute-sanitizer" or die "$root/bin/compute-sanitizer: $!\n";
    return in_root("$run part faults 8400 --only compute-sanitizer");
  };
  ($status, $text) = $sanitizer->('========= RACECHECK SUMMARY: 3 hazards displayed', 9);
  expect('races', 1, qr/compute-sanitizer racecheck: failed .*SUMMARY: 3 hazards/s, $status, $text);
  ($status, $text) = $sanitizer->('========= nothing', 0);
  expect('no summary', 1, qr/compute-sanitizer memcheck: failed .*no summary/, $status, $text);
  ($status, $text) = $sanitizer->('========= ERROR SUMMARY: 0 errors', 0);
  expect('no errors', 0, qr/memcheck: passed .*SUMMARY: 0 errors; --tool memcheck --error-exitcode 9 .*train.*racecheck: passed/s, $status, $text);
  unlink "$root/bin/compute-sanitizer";
  # A run that is killed goes on, and repeats nothing that has passed.
  kill_in('operators', "$run 8400");
  kill_in('operators', "$run 8400");
  my @swiglu = grep { $_->{part} eq 'operators' && $_->{item} eq 'swiglu' } items();
  die "what has passed was repeated\n" unless @swiglu == 1 && $swiglu[0]{seconds} == $before->{seconds};
  ($status, $text) = in_root("$run report --to /work/page.md");
  expect('report', 0, qr/^page: /m, $status, $text);
  my $page = text_of("$root/work/page.md");
  for my $line ('# Tessera on a GPU', '## Deviations', '## operators: ', '| one_rank graphs | passed |', '### qwen_1.5b, by operator') {
    die "the page lacks '$line':\n$page" if index($page, $line) < 0;
  }
  die "the results have more than 1 MiB\n" if -s $results > 1 << 20;
}

if ($what eq 'busybox') {
  ($status, $text) = in_root("$run part doctor 8400");
  expect('doctor', 0, qr/^doctor: 2 of 2 passed/m, $status, $text);
  ($status, $text) = in_root("$run report --to /work/page.md");
  expect('report', 0, qr/^page: /m, $status, $text);
  ($status, $text) = in_root("$run part colours");
  expect('an error', 2, qr/there is no such part/, $status, $text);
}

# Marks all items as passed, so that the next start goes to the next part.
sub pass_all {
  my ($part, @names) = @_;
  write_file($results, text_of($results) . join '', map { encode_json({ part => $part, item => $_, status => 'passed', seconds => 1 }) . "\n" } @names);
}

if ($what eq 'kills') {
  my $styles = decode_json(text_of("$pack/reference/steps.json"))->{styles};
  my $operators = text_of("$pack/reference/operators.safetensors");
  my $header = decode_json(substr $operators, 8, unpack 'Q<', $operators);
  my %left = (
    operators => [ map { $_->{op} } @{ decode_json($header->{__metadata__}{calls}) } ],
    styles => [ map { my $name = $_; map { "$name $_" } qw(eager planned graphs) } sort keys %$styles ],
    rates => ['linear, best of 8 algorithms'],  # minutes on the emulator
  );
  my %passed;
  for my $part (qw(doctor operators styles rates models faults more)) {
    kill_in($part, "$run 8400", 2);
    for my $one (items()) {
      my $seconds = $passed{$one->{part}}{ $one->{item} };
      die "$one->{part}, $one->{item} was repeated after a kill in $part\n" if defined $seconds && $seconds != $one->{seconds};
    }
    print "killed in $part: ", scalar(items()), " results\n";
    pass_all($part, grep { my $name = $_; !grep { $_->{part} eq $part && $_->{item} eq $name } items() } @{ $left{$part} }) if $left{$part};
    $passed{ $_->{part} }{ $_->{item} } = $_->{seconds} for grep { $_->{status} eq 'passed' } items();
  }
  # Before the part `more`, all others were completed by the starts after the kills.
  for my $one (grep { $_->{part} ne 'more' } items()) {
    my $may_be_absent = $one->{item} =~ /^compute-sanitizer/;
    die "$one->{part}, $one->{item}: $one->{status} " . ($one->{problem} // '') . "\n"
      unless $one->{status} eq 'passed' || ($may_be_absent && $one->{status} eq 'absent');
  }
  for my $name ('NCCL', 'NCCL, steps', 'NCCL, planned steps', 'NCCL, steps as graphs', 'a process that is stopped', 'a process that is killed', 'too little memory') {
    item('faults', $name);
  }
  # With time that is left.
  ($status, $text) = in_root("$run part more 8400 --only cuDNN");
  expect('attention', 0, qr/attention by cuDNN and our own: passed .*"difference":/, $status, $text);
  ($status, $text) = in_root("$run part more 8400 --only 'one_rank planned, twice'");
  expect('bits', 0, qr/one_rank planned, twice: passed/, $status, $text);
  ($status, $text) = in_root("$run part more 8400 --only 'one_rank compiled'");
  expect('compiled steps', 0, qr/one_rank compiled: absent NVRTC's library is not there/, $status, $text);
}

if ($what eq 'inputs') {
  my $doctor = "$run part doctor 8400";
  expect('old driver', 2, qr/driver is too old \(expected CUDA 12\.8 or later, got 12\.4\); install/,
    in_root($doctor, set => { TESSERA_EMULATOR_DRIVER => 12040 }));
  expect('old driver for the machine code', 2, qr/too old for the pack's machine code \(expected CUDA 13 or later, as nvcc 13\.0 has made it, got 12\.8\)/,
    in_root($doctor, set => { TESSERA_EMULATOR_DRIVER => 12080 }));
  expect('no GPU', 2, qr/^error: GPU: there is no GPU that can be used/m, in_root($doctor, set => { TESSERA_EMULATOR_DEVICES => 0 }));
  rename "$root$libraries/libcuda.so.1", "$root/away";
  expect('no driver', 2, qr/^error: GPU: NVIDIA's driver \(libcuda\.so\.1\) is not found/m, in_root($doctor));
  rename "$root/away", "$root$libraries/libcuda.so.1";

  my $list = text_of("$pack/pack.json");
  write_file("$pack/pack.json", $list =~ s/"90a"/"89"/r);
  expect('machine code', 2, qr/no machine code for this GPU \(expected compute capability 89, got 90\); make another pack: .*--architectures 90a/,
    in_root($doctor));
  write_file("$pack/pack.json", $list =~ s/.{40}\z//sr);
  expect('damaged list', 2, qr/pack\.json: .*unpack the archive again/, in_root($doctor));
  write_file("$pack/pack.json", $list);

  my $losses = text_of("$pack/reference/steps.json");
  write_file("$pack/reference/steps.json", "$losses ");
  expect('damaged file', 2, qr/steps\.json: this file of the pack is damaged; unpack/, in_root($doctor));
  unlink "$pack/reference/steps.json";
  expect('missing file', 2, qr/steps\.json: this file of the pack is missing; unpack/, in_root($doctor));
  # A model that does not fit is skipped, with both numbers.
  write_file("$pack/reference/steps.json", $losses =~ s/"peak_bytes": *\d+/"peak_bytes": 900000000000000/gr);
  in_root('cd /work/tessera-gpu && LD_LIBRARY_PATH=/work/tessera-gpu/lib bin/tessera-first-day seal . --small --commit x --compiler y --glibc 2.36 --architecture 90a');
  expect('too little memory', 0, qr/qwen_7b: absent too little memory: it needs 818\.\d TiB, .* are free/, in_root("$run part models 8400 --only qwen_7b --results /tmp/r"));
  write_file("$pack/reference/steps.json", $losses);
  write_file("$pack/pack.json", $list);

  my $blas = "$root$packages/cu13/lib";
  rename "$blas/libcublasLt.so.13", "$blas/libcublasLt.so.11";
  expect('another library', 1, qr/libcublasLt\.so: it is of another version \(expected 13 or 12, got .*\.so\.11\)/, in_root("$doctor --only versions --results /tmp/r2"));
  rename "$blas/libcublasLt.so.11", "$blas/libcublasLt.so.13";

  make_path("$pack/results");
  expect('full disk', 2, qr/the results cannot be written \(got .*\); make room/,
    in_root("$run part operators 8400 --only _", before => "mount -t tmpfs -o size=4k none '$pack/results'"));
  expect('a part that does not exist', 2, qr/there is no such part \(expected doctor, .*, got colours\)/, in_root("$run part colours"));
  expect('time', 2, qr/SECONDS/, in_root("$run part doctor ten"));

  write_file("$root/work/garbage", "\x7fELF garbage\n");
  expect('garbage', 2, qr/garbage: it is not a file of results/, in_root("$run report /work/garbage"));
  write_file("$root/work/other", qq({"first_day":2,"version":"9"}\n));
  expect('another version', 2, qr/other: it has results in another version of the format \(expected 1, got 2\)/, in_root("$run report /work/other"));
  write_file("$root/work/damaged", qq({"first_day":1}\n{"part":"operators"}\n));
  expect('a damaged line', 2, qr/damaged: line 2 is damaged/, in_root("$run report /work/damaged"));
  expect('no file', 2, qr/nothing: /, in_root("$run report /work/nothing"));
  write_file($results, qq({"first_day":1,"version":"0.0"}\n));
  expect('another pack', 2, qr/it has the results of another pack/, in_root($doctor));
  # A last line that was cut off is as if it had not been written.
  unlink $results;
  in_root($doctor);
  write_file($results, text_of($results) . '{"part":"doc');
  expect('a cut line', 0, qr/^doctor: 2 of 2 passed/m, in_root($doctor));
}

remove_tree($root);
