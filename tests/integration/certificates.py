"""A certificate authority of our own, made with the installed openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """An authority with a self-signed certificate that lasts a day."""

    def __init__(self, directory: Path, name: str) -> None:
        assert shutil.which("openssl"), "openssl is not installed (Debian: apt-get install openssl)"
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._made = 0
        self._own = Certificate(directory / "ca.pem", directory / "ca.key")
        extensions = ["-addext", "basicConstraints=critical,CA:true", "-addext", "keyUsage=critical,keyCertSign"]
        self._request(self._own, f"/CN={name}", ["-x509", "-days", "1", *extensions])

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    def issue(self, subject: str, alternative_names: str = "", days: int = 1) -> Certificate:
        """Sign a certificate for `subject` (``/O=org/CN=name``) and `alternative_names` (``DNS:a,IP:b``)."""
        self._made += 1
        issued = Certificate(self._directory / f"{self._made}.pem", self._directory / f"{self._made}.key")
        signed = ["-x509", "-days", str(days), "-CA", str(self._own.certificate), "-CAkey", str(self._own.key)]
        signed += ["-addext", "basicConstraints=critical,CA:false"]
        if alternative_names:
            signed += ["-addext", f"subjectAltName={alternative_names}"]
        self._request(issued, subject, signed)
        return issued

    def issue_expired(self, subject: str, alternative_names: str) -> Certificate:
        """Sign a certificate that ended yesterday."""
        self._made += 1
        issued = Certificate(self._directory / f"{self._made}.pem", self._directory / f"{self._made}.key")
        wanted = self._directory / f"{self._made}.csr"
        self._request(Certificate(wanted, issued.key), subject, ["-addext", f"subjectAltName={alternative_names}"])
        command = ["openssl", "x509", "-req", "-in", str(wanted), "-out", str(issued.certificate), "-days", "-1"]
        command += ["-CA", str(self._own.certificate), "-CAkey", str(self._own.key), "-copy_extensions", "copy"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return issued

    @staticmethod
    def _request(made: Certificate, subject: str, options: list[str]) -> None:
        command = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-utf8", "-subj", subject, "-keyout", str(made.key), "-out", str(made.certificate), *options]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
