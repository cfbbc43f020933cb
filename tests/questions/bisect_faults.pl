#!/usr/bin/env perl
# Plants the faults of bisect.faults, one at a time, in a second build of the library, and lets
# `tessera bisect` name each: see docs/bisect.md. The second build is one object that is compiled again, and a link;
# nothing of the first build is written.
#
#   bisect_faults.pl REPOSITORY BUILD NINJA [NAME...]
#
# An entry of the list:
#   [name]
#   file: the source that has the fault (of the library: a plugin would be found twice, and refused)
#   run: the config that shows it (a key of %runs below), and keys of the config after it
#   module: what bisect must name: a module, a part of one ("*" for any text), "-" for none
#   operator: the operator, or "row" where a row of the data must be named
#   missed: REASON   only where it names another module
#   - text that is once in the file
#   + what replaces it; several pairs are replaced one after the other
# Prints a table. Fails where a module is wrong and not listed as missed, or more than a tenth of the operators.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);
use JSON::PP qw(decode_json);

my ($repository, $build, $ninja, @names) = @ARGV;
die "usage: bisect_faults.pl REPOSITORY BUILD NINJA [NAME...]\n" unless defined $ninja;
$_ = abs_path($_) // die "no such folder\n" for $repository, $build;
$| = 1;
$ENV{TESSERA_PLUGIN_PATH} = "$build/lib/tessera/plugins";

my $model = "dim = 16\nlayers = 2\nheads = 2\nkv_heads = 2\nffn_dim = 32\n";
my $data = "[data]\njsonl = [\"rows.jsonl\"]\nseq_len = 24\nvalidation = 0\n";
my $train = "[train]\nsteps = 6\nbatch = 4\nthreads = 1\n";
my $saved = "[checkpoint]\nfolder = \"saved\"\nevery = 2\nkeep = 0\n";
my $sharded = "[mesh]\naxes = [\"shard\"]\nshape = [2]\n[[parallel]]\nstyle = \"FSDP\"\naxis = \"shard\"\n"
  . "on = [\"model.layers.*\", \".\"]\n";
my $tensor = "[mesh]\naxes = [\"tensor\"]\nshape = [2]\n"
  . "[[parallel]]\nstyle = \"ColwiseParallel\"\naxis = \"tensor\"\n"
  . "on = [\"model.layers.*.self_attn.{q,k,v}_proj\", \"model.layers.*.mlp.{gate,up}_proj\"]\n"
  . "[[parallel]]\nstyle = \"RowwiseParallel\"\naxis = \"tensor\"\n"
  . "on = [\"model.layers.*.self_attn.o_proj\", \"model.layers.*.mlp.down_proj\"]\n";
my %runs = (
  plain => "[model]\n$model$data$train$saved",
  dropout => "[model]\n${model}dropout = 0.2\n$data$train$saved",
  gpt2 => "[model]\nfamily = \"gpt2\"\ndim = 16\nlayers = 2\nheads = 2\n$data$train$saved",
  sharded => "[model]\n$model$data$train$saved$sharded",
  tensor => "[model]\n$model$data$train$saved$tensor",
);

sub read_list {
  my (@faults, $sign);
  for my $line (split /\n/, text_of("$FindBin::RealBin/bisect.faults")) {
    next if $line =~ /^(#.*)?$/;
    if ($line =~ /^\[(\w+)\]$/) {
      push @faults, { name => $1, pairs => [] };
      $sign = '';
    } elsif ($line =~ /^(file|run|module|operator|missed): (.+)$/) {
      $faults[-1]{$1} = $2;
    } elsif ($line =~ /^([-+])(?: (.*))?$/) {
      my ($now, $text) = ($1, $2 // '');
      my $pairs = $faults[-1]{pairs};
      push @$pairs, {} if $now eq '-' && $sign ne '-';
      my $place = $now eq '-' ? 'old' : 'new';
      $pairs->[-1]{$place} = defined $pairs->[-1]{$place} ? "$pairs->[-1]{$place}\n$text" : $text;
      $sign = $now;
    } else {
      die "bisect.faults: not a line of a fault: $line\n";
    }
  }
  return @faults;
}

sub run_in {
  my ($folder, $command) = @_;
  my $output = `cd '$folder' && $command 2>&1`;
  return ($? >> 8, $output);
}

my $scratch = tempdir('bisect-faults-XXXXXX', TMPDIR => 1, CLEANUP => 1);

# A run by the first build; its folder.
my %trained;
sub trained {
  my ($run) = @_;
  return $trained{$run} if $trained{$run};
  my ($name, $keys) = split / /, $run, 2;
  my $folder = "$scratch/run" . keys %trained;
  make_path($folder);
  my $rows = join '', map {
    sprintf "{\"prompt\": \"n%d: \", \"completion\": \"%s\"}\n", $_, chr(ord('a') + $_ % 20) x (3 + $_ % 7)
  } 0 .. 39;
  write_file("$folder/rows.jsonl", $rows);
  write_file("$folder/run.toml", $runs{$name} // die "no run '$name'\n");
  my ($code, $output) = run_in($folder, "$build/bin/tessera train run.toml " . ($keys // ''));
  die "$run: the run failed:\n$output" if $code;
  return $trained{$run} = $folder;
}

# The command that makes a file, as the build has it.
sub command_of {
  my ($target) = @_;
  my ($code, $output) = run_in($build, "$ninja -t commands -s '$target'");
  die "ninja knows no '$target':\n$output" if $code || $output !~ /\S/;
  return (split /\n/, $output)[-1];
}

# What a source becomes part of: [object, file that is linked].
my @outputs;
sub outputs_of {
  my ($file) = @_;
  @outputs = split /\n/, (run_in($build, "$ninja -t targets all"))[1] unless @outputs;
  my $end = $file =~ s{^modules/}{}r;
  my ($object) = map { /^(\S+\.o):/ ? $1 : () } grep { m{(?:^|/)\Q$end\E\.o:} || m{/\Q@{[basename $file]}\E\.o:} && m{^\Q@{[dirname $file]}\E/} } @outputs;
  die "no object of $file\n" unless defined $object;
  return ($object, 'lib/libtessera.so.0.1.0') if $file =~ m{^modules/};
  my ($name) = $object =~ m{CMakeFiles/(\w+)\.dir/};
  return ($object, "lib/tessera/plugins/$name.so");
}

# Makes the second build: the path of its program.
sub second_build {
  my ($fault) = @_;
  my $folder = "$scratch/$fault->{name}";
  make_path("$folder/plugins");
  my $source = text_of("$repository/$fault->{file}");
  for my $pair (@{ $fault->{pairs} }) {
    my $count = () = $source =~ /\Q$pair->{old}\E/g;
    die "$fault->{name}: '$pair->{old}' is in $fault->{file} $count times (expected once)\n" if $count != 1;
    $source =~ s/\Q$pair->{old}\E/$pair->{new}/;
  }
  my $copy = "$folder/" . basename($fault->{file});
  write_file($copy, $source);
  my ($object, $linked) = outputs_of($fault->{file});
  my $compile = command_of($object);
  my $new = "$folder/fault.o";
  $compile =~ s{-o \Q$object\E}{-o $new} or die "$fault->{name}: the object is not in its command\n";
  $compile =~ s{-MF \S+}{-MF $folder/fault.d};
  $compile =~ s{-c (\S+)}{"-iquote " . dirname($1) . " -c $copy"}e;
  my ($code, $output) = run_in($build, "$compile -Wno-error");
  die "$fault->{name}: it does not compile:\n" . substr($output, 0, 2000) if $code;
  my $library = $linked =~ /libtessera/ ? "$folder/" . basename($linked) : "$folder/plugins/" . basename($linked);
  my $link = command_of($linked);
  $link =~ s{\Q$object\E}{$new} or die "$fault->{name}: the object is not linked\n";
  $link =~ s{-o \Q$linked\E}{-o $library};
  $link =~ s{\Q$build/$linked\E}{$library}g;
  ($code, $output) = run_in($build, $link);
  die "$fault->{name}: it does not link:\n" . substr($output, 0, 2000) if $code;
  for my $plugin (glob "$build/lib/tessera/plugins/*.so") {  # the others, as they are
    my $link = "$folder/plugins/" . basename($plugin);
    -e $link || symlink($plugin, $link) or die "$link: $!\n";
  }
  write_file("$folder/tessera", "#!/bin/sh\nLD_LIBRARY_PATH='$folder' TESSERA_PLUGIN_PATH='$folder/plugins' "
    . "exec '$build/bin/tessera' \"\$@\"\n");
  chmod 0755, "$folder/tessera";
  return "$folder/tessera";
}

sub matches {
  my ($pattern, $name) = @_;
  return $name eq '' if $pattern eq '-';
  my $expression = join '.*', map { quotemeta } split /\*/, $pattern, -1;
  return $name =~ /^$expression$/;
}

my @faults = grep { my $name = $_->{name}; !@names || grep { $_ eq $name } @names } read_list();
my ($modules, $operators, $tried, $missed) = (0, 0, 0, 0);
print "| fault | named | module | operator |\n| --- | --- | --- | --- |\n";
for my $fault (@faults) {
  my $named = eval {
    my $folder = trained($fault->{run});
    my $program = second_build($fault);
    my ($code, $output) = run_in($folder, "$build/bin/tessera bisect saved --other-program $program --json");
    return { error => $code == 0 ? 'nothing differs' : substr $output, 0, 300 } if $code != 1;
    my $found = decode_json($output);
    return $found->{row} ? { module => '', operator => 'row' }
      : { module => $found->{call}{module}, operator => $found->{call}{operator}, phase => $found->{call}{phase} };
  } // { error => $@ };
  ++$tried;
  my $module = !$named->{error} && matches($fault->{module}, $named->{module});
  my $operator = !$named->{error} && matches($fault->{operator}, $named->{operator});
  $modules += $module ? 1 : 0;
  $missed += !$module && $fault->{missed} ? 1 : 0;
  $operators += $operator ? 1 : 0;
  my $text = $named->{error} ? $named->{error} =~ s/\s+/ /gr
    : join ', ', grep { length } $named->{operator}, $named->{phase} // '', $named->{module};
  printf "| %s | %s | %s | %s |\n", $fault->{name}, $text, $module ? 'right' : 'WRONG', $operator ? 'right' : 'WRONG';
}
printf "%d faults: the module is right for %d, the operator for %d\n", $tried, $modules, $operators;
exit($modules + $missed == $tried && $operators * 10 >= $tried * 9 ? 0 : 1);
