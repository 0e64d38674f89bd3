"""Programs of other languages under the preload library: Java has handlers of its own for faults, and Go calls the system itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from foreload._mapped import preload
from test_mmap_paper import detector, under
from test_mmap_run import BYTES, SOON, files, lines

__all__ = ["detector", "files"]


def built(go: str, source: Path) -> Path | None:
    """A Go program, or None where Go can't build it."""
    program = source.with_suffix("")
    environment = {**os.environ, "GOCACHE": str(source.parent / "go"), "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    done = subprocess.run(
        [go, "build", "-o", str(program), str(source)], env=environment, capture_output=True, check=False
    )
    return program if done.returncode == 0 else None


def test_other_programs_run_as_before(tmp_path: Path, files: Path) -> None:
    """Java, and Go, which calls the system itself."""
    environment = preload.environment(["*.bin"])
    java, go = shutil.which("java"), shutil.which("go")
    if java is None and go is None:
        pytest.skip("neither Java nor Go is here")
    (tmp_path / "Main.java").write_text(
        """
        import java.io.*; import java.nio.*; import java.nio.channels.*;
        public class Main { public static void main(String[] a) throws Exception {
            try (RandomAccessFile f = new RandomAccessFile(a[0], "r"); FileOutputStream o = new FileOutputStream(a[1])) {
                MappedByteBuffer m = f.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, f.length());
                long n = 0; while (m.hasRemaining()) n += o.getChannel().write(m);
                System.out.println(n);
            } } }
        """
    )
    (tmp_path / "main.go").write_text(
        """
        package main
        import ("fmt"; "os"; "syscall")
        func main() {
            f, _ := os.Open(os.Args[1]); i, _ := f.Stat()
            m, err := syscall.Mmap(int(f.Fd()), 0, int(i.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
            if err != nil { panic(err) }
            if err := os.WriteFile(os.Args[2], m, 0600); err != nil { panic(err) }
            fmt.Println(len(m)) }
        """
    )
    commands = []
    if java is not None and subprocess.run([java, "--version"], capture_output=True, check=False).returncode == 0:
        commands.append([java, str(tmp_path / "Main.java")])
    if go is not None:
        program = built(go, tmp_path / "main.go")
        if program is not None:
            commands.append([str(program)])
    if not commands:
        pytest.skip("neither Java nor Go works here")
    for command in commands:
        out = tmp_path / "out"
        done = subprocess.run(
            [*command, str(files / "plain.bin"), str(out)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SOON,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, f"{BYTES}\n"), (command, done.stderr)
        assert out.read_bytes() == (files / "plain.bin").read_bytes()


def test_java_reads_and_keeps_its_own_faults_and_can_not_write_from_the_map(
    files: Path, tmp_path: Path, detector: str
) -> None:
    java = shutil.which("java")
    if java is None or subprocess.run([java, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("no Java")
    (tmp_path / "Main.java").write_text(
        """
        import java.io.*; import java.nio.*; import java.nio.channels.*;
        public class Main {
            static int length(String s) { return s.length(); }
            public static void main(String[] a) throws Exception {
                MappedByteBuffer m;
                try (RandomAccessFile f = new RandomAccessFile(a[0], "r")) {
                    m = f.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, f.length());
                }
                java.util.zip.CRC32 crc = new java.util.zip.CRC32();
                int thrown = 0;
                byte[] part = new byte[1 << 16];
                while (m.hasRemaining()) {
                    m.get(part, 0, Math.min(part.length, m.remaining()));
                    crc.update(part);
                    // In compiled code this is a fault of Java's own.
                    for (int i = 0; i < 1000; i++) try { length(i % 2 == 0 ? null : "x"); } catch (NullPointerException e) { thrown++; }
                }
                System.out.println(crc.getValue() + " " + thrown);
                m.position(3 << 20);
                try (FileOutputStream o = new FileOutputStream(a[1])) { System.out.println(o.getChannel().write(m)); }
                catch (IOException e) { System.out.println("refused"); }
            } }
        """
    )
    words = ("-Xmx256m", tmp_path / "Main.java", files / "plain.bin", tmp_path / "out")
    done = under(Path(java), *words, detector=detector, stats=tmp_path / "stats")
    crc = zlib.crc32((files / "plain.bin").read_bytes())
    assert (done.returncode, done.stdout) == (0, f"{crc} {BYTES // (1 << 16) * 500}\nrefused\n"), done.stderr
    assert max(line["traps"] for line in lines(tmp_path / "stats")) >= 24


def test_go_reads_and_keeps_its_own_faults(files: Path, tmp_path: Path, detector: str) -> None:
    """With C's `mmap`, which the library sees: Go has handlers of its own, on stacks of its own, for the faults that it recovers from."""
    go = shutil.which("go")
    if go is None or (shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no Go, or no C compiler")
    source = tmp_path / "main.go"
    source.write_text(
        """
        package main
        // #include <sys/mman.h>
        import "C"
        import ("fmt"; "hash/crc32"; "os"; "time"; "unsafe")
        type box struct{ n int }
        func length(b *box) (n int, thrown bool) {
            defer func() { thrown = recover() != nil }()
            return b.n, false
        }
        func main() {
            f, _ := os.Open(os.Args[1]); i, _ := f.Stat()
            at, err := C.mmap(nil, C.size_t(i.Size()), C.PROT_READ, C.MAP_SHARED, C.int(f.Fd()), 0)
            if err != nil { panic(err) }
            m := unsafe.Slice((*byte)(at), i.Size())
            crc, thrown := uint32(0), 0
            for begin := 0; begin < len(m); begin += 1 << 16 {
                crc = crc32.Update(crc, crc32.IEEETable, m[begin:begin+1<<16])
                if _, t := length(nil); t { thrown++ }
            }
            fmt.Println(crc, thrown)
            // It ends without a word to the C library: what the line tells is up to a tenth of a second old.
            time.Sleep(500 * time.Millisecond)
        }
        """
    )
    program = built(go, source)
    if program is None:
        pytest.skip("this Go can't build with C")
    done = under(program, files / "plain.bin", detector=detector, stats=tmp_path / "stats")
    crc = zlib.crc32((files / "plain.bin").read_bytes())
    assert (done.returncode, done.stdout) == (0, f"{crc} {BYTES // (1 << 16)}\n"), done.stderr
    (line,) = lines(tmp_path / "stats")
    assert (line["off"], line["traps"] >= 24) == (None, True), line
